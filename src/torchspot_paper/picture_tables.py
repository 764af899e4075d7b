"""Tables and charts of the experiments on pictures."""

__all__ = ["draw_numbers", "fig5", "fig7", "sheet_name"]

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from torchspot_paper.recipe import Rows
from torchspot_paper.tables import table

Found = dict[tuple[str, str, str], dict[str, list[float]]]

_HIGHER = ("label_agreement", "sure_of_both", "precision", "recall")
"""Metrics of which more is better."""


def sheet_name(experiment: str, method: str, name: str) -> str:
    """Of the file with the contact sheet of a run."""
    return f"{experiment}_{method}_{name.replace(' ', '_')}.png"


def fig5(rows: Rows) -> Iterator[str]:
    """Pairing, quality and variety, method by method; and the contact sheets."""
    found = _by_method(rows)
    yield _pairing(found, ("contour_ratio", "label_agreement", "label_agreement_sure", "sure_of_both"))
    yield _quality(found)
    yield _beside(rows)
    for _, method, preset in found:
        yield _sheet("fig5", method, preset, f"{method}, {preset}")


def fig7(rows: Rows) -> Iterator[str]:
    """The same for pictures without labels."""
    found = _by_method(rows)
    yield _pairing(found, ("contour_ratio", "pairing_ratio", "pairing_deviations"))
    yield _quality(found)
    yield _beside(rows)
    for task, method, _ in found:
        yield _sheet("fig7", method, task, task)


def draw_numbers(rows: Rows, metrics: Sequence[str], file: Path) -> None:
    """One panel a metric: a point for each run, a line where real pictures are."""
    found = _by_method(rows)
    figure, axes = plt.subplots(1, len(metrics), figsize=(3.2 * len(metrics), 3.2), layout="constrained", squeeze=False)
    for axis, metric in zip(axes[0], metrics, strict=True):
        for place, numbers in enumerate(found.values()):
            values = numbers.get(metric, [])
            axis.scatter([place] * len(values), values, s=18)
            if real := numbers.get(_real_name(metric)):
                axis.plot([place - 0.3, place + 0.3], [real[0]] * 2, color="black", linewidth=1)
        axis.set_xticks(range(len(found)), _ticks(found), rotation=60, ha="right", fontsize=7)
        axis.set_xlim(-0.5, len(found) - 0.5)
        axis.set_title(metric.replace("_", " "), fontsize=9)
        if metric.startswith("frechet"):
            axis.set_yscale("log")
        else:
            axis.set_ylim(0, 1.05)
    figure.suptitle("a point a run; black: real pictures", fontsize=8)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _by_method(rows: Rows) -> Found:
    found: Found = {}
    for row in rows:
        s = row["setting"]
        numbers = found.setdefault((s["task"], s["method"], s["preset"]), defaultdict(list))
        numbers[row["metric"]].append(row["value"])
        if row["metric"] == "frechet_x":
            numbers["seconds"].append(row["seconds"])
            numbers["steps"].append(s["steps"])
    return dict(sorted(found.items(), key=lambda item: _place(*item[0])))


def _place(task: str, method: str, preset: str) -> tuple[Any, ...]:
    """SPOT before the others, and of its recipes the default."""
    return (task, method != "spot", method, preset != "default", preset)


def _pairing(found: Found, metrics: Sequence[str]) -> str:
    used = [m for m in metrics if any(m in numbers for numbers in found.values())]
    lines = [
        [
            *_named(name),
            *(_mean_and_worst(numbers, metric) for metric in used),
            str(len(numbers["seconds"])),
            f"{numbers['steps'][0]:,}",
            f"{statistics.fmean(numbers['seconds']):.0f}",
        ]
        for name, numbers in found.items()
    ]
    return table(["task", "method", *(m.replace("_", " ") for m in used), "runs", "steps", "seconds"], lines)


def _quality(found: Found) -> str:
    metrics = [f"{kind}_{side}" for side in "xy" for kind in ("frechet", "kernel", "precision", "recall")]
    lines = [
        [
            *_named(name),
            *(_mean_and_worst(numbers, metric) for metric in metrics),
            _mean_and_worst(numbers, "colour_spread"),
        ]
        for name, numbers in found.items()
    ]
    for task in dict.fromkeys(name[0] for name in found):
        real = next(numbers for name, numbers in found.items() if name[0] == task)
        lines.append([task, "real halves", *(f"{real[_real_name(m)][0]:.3g}" for m in (*metrics, "colour_spread"))])
    return table(["task", "method", *(m.replace("_", " ") for m in metrics), "colour spread"], lines)


def _beside(rows: Rows) -> str:
    """What real pictures give, said in a line for each task."""
    said = {}
    names = ("contour_ratio_real_pairs", "contour_ratio_least", "label_agreement_real", "classifier_accuracy_x")
    for row in rows:
        if row["metric"] in (*names, "classifier_accuracy_y"):
            said[row["setting"]["task"], row["metric"]] = row["value"]
    lines = [[task, metric.replace("_", " "), f"{value:.3f}"] for (task, metric), value in said.items()]
    return table(["task", "of real pictures", "value"], lines)


def _sheet(experiment: str, method: str, name: str, about: str) -> str:
    file = f"results/sheets/{sheet_name(experiment, method, name)}"
    return f"The first 64 pairs of seed 0 ({about}), real pictures on the right:\n\n![{about}]({file})"


def _named(name: tuple[str, str, str]) -> tuple[str, str]:
    task, method, preset = name
    return task, method if preset in ("default", "paper", "reference") else f"{method} ({preset})"


def _ticks(found: Found) -> list[str]:
    """Methods, with their task where there are several."""
    several = len({task for task, _, _ in found}) > 1
    return [f"{method}\n{task}" if several else method for task, method in map(_named, found)]


def _mean_and_worst(numbers: dict[str, list[float]], metric: str) -> str:
    values = numbers.get(metric)
    if not values:
        return ""
    worst = min(values) if metric.startswith(_HIGHER) else max(values)
    mean = f"{statistics.fmean(values):.3g}"
    return mean if len(values) == 1 or metric == "colour_spread" else f"{mean} ({worst:.3g})"


def _real_name(metric: str) -> str:
    return "contour_ratio_real_pairs" if metric == "contour_ratio" else f"{metric}_real"
