"""Figure 2: the distance of section 5.1 against epochs and seconds, SPOT beside ROT, three learning rates."""

__all__ = ["draw", "label", "run", "settings"]

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D

from torchspot import SPOT
from torchspot.baselines import ROT
from torchspot.objectives.regularised import Entropy, Quadratic, Regularisation
from torchspot_paper.problems import gaussians
from torchspot_paper.recipe import (
    Call,
    Outcome,
    errors_of,
    marginals_beside_noise,
    paper_networks,
    spot_presets,
)

N, WIDTH, SEEDS = 100_000, 8, 50
EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0)
STEPS = {1e-3: 20_000, 1e-4: 20_000, 1e-5: 200_000}
ROT_STEPS = 5000
PUBLISHED = {1e-3: 0.006, 1e-4: 0.003, 1e-5: 0.003}
_VARIANTS: dict[str, dict[str, Any]] = {
    "independent weights": {"aligned": False},
    "data as it is": {"aligned": False, "standardise": False},
}
_SHOWN = (3.5, 6.5)
_REGULARISATIONS: dict[str, Regularisation] = {"entropy": Entropy(), "l2": Quadratic()}


@dataclass(frozen=True)
class Setting:
    """A method at a learning rate."""

    method: str
    lr: float
    variant: str = ""
    """Of ROT, the regularisation; of SPOT, what differs from the recipe."""

    def __str__(self) -> str:
        return f"{self.method}@{self.lr:g}{'/' + self.variant if self.variant else ''}"


def settings(quick: bool) -> list[Setting]:
    """All, the longest first. At 1e-5 only two: it takes 2·10⁵ steps."""
    if quick:
        return [
            Setting("spot", 1e-3),
            Setting("spot-paper", 1e-4),
            Setting("rot", 1e-3, "entropy"),
        ]
    long = [Setting("spot-paper", 1e-5), Setting("spot", 1e-5)]
    short = [Setting(method, lr) for lr in (1e-3, 1e-4) for method in ("spot-paper", "spot-clipping", "spot")]
    rot = [Setting("rot", lr, kind) for lr in (1e-3, 1e-4) for kind in _REGULARISATIONS]
    variants = [Setting("spot", lr, variant) for lr in (1e-3, 1e-4) for variant in _VARIANTS]
    return [*long, *rot, *short, *variants]


def run(call: Call, setting: Setting) -> list[Outcome]:
    """All seeds of a setting, as replicas."""
    n = 2000 if call.quick else N
    xs = gaussians().sample(n, 0)
    return _run_rot(call, setting, xs) if setting.method == "rot" else [_run_spot(call, setting, xs)]


def _run_spot(call: Call, setting: Setting, xs: tuple[np.ndarray, ...]) -> Outcome:
    preset = spot_presets(setting.lr)[setting.method]
    if setting.method == "spot":
        preset = paper_networks(preset, WIDTH)
    if setting.variant:
        preset = replace(preset, **_VARIANTS[setting.variant])
    started = time.perf_counter()
    steps = 20 if call.quick else STEPS[setting.lr]
    seeds = call.runs(SEEDS)
    spot = SPOT(preset=preset, steps=steps, replicas=seeds, seed=0, engine=call.engine()).fit(*xs)
    seconds = time.perf_counter() - started
    values = [plan.expected_cost().value for plan in spot.plans_]
    batch = preset.sizes(2).batch_size
    metrics = errors_of(values, 5.0) | {"error_at_step_0": spot.history_[0]["cost"] / 5.0 - 1}
    metrics |= marginals_beside_noise(spot.plans_, gaussians(), quick=call.quick)
    return Outcome(
        _described(setting) | {"width": WIDTH, "steps": steps},
        metrics,
        seeds,
        seconds,
        {"error_of_mean": PUBLISHED[setting.lr]}
        if not setting.variant and setting.method in ("spot", "spot-paper")
        else {},
        _curve(spot.history_, batch / len(xs[0]), range(seeds)),
    )


def _run_rot(call: Call, setting: Setting, xs: tuple[np.ndarray, ...]) -> list[Outcome]:
    """All ε at once; the dual is what the paper compares with, plan and map are reported beside it."""
    seeds, steps = call.runs(SEEDS), 5 if call.quick else ROT_STEPS
    epsilons = EPSILONS[1:3] if call.quick else EPSILONS
    started = time.perf_counter()
    rot = ROT(
        regularisation=_REGULARISATIONS[setting.variant],
        epsilon=epsilons,
        learning_rate=setting.lr,
        steps=steps,
        replicas=seeds,
        seed=0,
        engine=call.engine(),
    ).fit(*xs)
    seconds = time.perf_counter() - started
    outcomes = []
    for k, epsilon in enumerate(epsilons):
        runs = range(k * seeds, (k + 1) * seeds)
        mapped = [rot.plans_[r].expected_cost(20_000).value for r in runs]
        metrics = errors_of([rot.duals_[r] for r in runs], 5.0)
        metrics |= {f"plan_{name}": value for name, value in errors_of([rot.plan_costs_[r] for r in runs], 5.0).items()}
        metrics |= {f"map_{name}": value for name, value in errors_of(mapped, 5.0).items()}
        about = {
            "method": "rot",
            "lr": setting.lr,
            "regularisation": setting.variant,
            "epsilon": epsilon,
            "steps": steps,
        }
        outcomes.append(Outcome(about, metrics, seeds, seconds, {}, _curve(rot.history_, 100 / len(xs[0]), runs)))
    return outcomes


def _described(setting: Setting) -> dict[str, Any]:
    return {"method": setting.method, "lr": setting.lr, **({"variant": setting.variant} if setting.variant else {})}


def _curve(history: Sequence[dict[str, Any]], epochs_a_step: float, runs: range) -> dict[str, list[float]]:
    """Mean and deviation over the runs at about 100 of the logged steps."""
    shown = history[:: max(1, len(history) // 100)]
    values = np.array([[costs[r] for r in runs] for costs in map(_costs, shown)])
    return {
        "epochs": [record["step"] * epochs_a_step for record in shown],
        "seconds": [record["seconds"] for record in shown],
        "mean": values.mean(1).tolist(),
        "deviation": values.std(1).tolist(),
    }


def _costs(record: dict[str, Any]) -> list[float]:
    """Of each run; a single one has no list."""
    return record["runs"]["cost"] if "runs" in record else [record["cost"]]


def draw(curves: Sequence[dict[str, Any]], file: Path) -> None:
    """One column for each learning rate; SPOT and ROT, each against epochs and against seconds."""
    rates = sorted({curve["setting"]["lr"] for curve in curves}, reverse=True)
    methods = [("SPOT", [c for c in curves if c["setting"]["method"] != "rot"])]
    methods += [("ROT", rot)] if (rot := [c for c in curves if c["setting"]["method"] == "rot"]) else []
    figure, axes = plt.subplots(2 * len(methods), len(rates), figsize=(5 * len(rates), 6 * len(methods)), squeeze=False)
    for place, (name, mine) in enumerate(methods):
        labels = sorted({label(curve["setting"]) for curve in mine})
        colours = {text: f"C{k}" for k, text in enumerate(labels)}
        for row, along in enumerate(("epochs", "seconds"), start=2 * place):
            for axis, lr in zip(axes[row], rates, strict=True):
                shown = [curve for curve in mine if curve["setting"]["lr"] == lr]
                _panel(axis, shown, along, colours)
                axis.set(title=f"{name}, learning rate {lr:g}", xlabel=along)
            axes[row, 0].set_ylabel("distance")
        handles = [Line2D([], [], color=colours[text], label=text) for text in labels]
        axes[2 * place, -1].legend(handles=handles, fontsize=7, loc="lower right")
    figure.tight_layout()
    figure.savefig(file, dpi=100)
    plt.close(figure)


def _panel(axis: Any, curves: Sequence[dict[str, Any]], along: str, colours: dict[str, str]) -> None:
    """Mean and deviation; the band is left out where it is wider than the picture."""
    if not curves:
        axis.text(0.5, 0.5, "not run", ha="center", transform=axis.transAxes)
    axis.axhline(5.0, color="black", linewidth=0.8, linestyle=":")
    for curve in curves:
        x, mean, deviation = (np.array(curve[name])[1:] for name in (along, "mean", "deviation"))
        colour, narrow = colours[label(curve["setting"])], deviation < (_SHOWN[1] - _SHOWN[0]) / 2
        axis.plot(x, mean, color=colour, linewidth=1.5)
        axis.fill_between(x, mean - deviation, mean + deviation, where=narrow, color=colour, alpha=0.15)
    axis.set(ylim=_SHOWN, xscale="log")


def label(setting: dict[str, Any]) -> str:
    """A setting in words."""
    if setting["method"] == "rot":
        return f"ROT {setting['regularisation']} ε={setting['epsilon']:g}"
    return setting["method"] + (f" ({setting['variant']})" if "variant" in setting else "")
