"""Tables of the adaptation experiments: rows in, Markdown out."""

__all__ = ["runtime", "table1", "tabular"]

import math
from collections.abc import Iterator, Sequence
from typing import Any

from torchspot_paper.domains import OTHER_SPLITS, PAPER_TASKS
from torchspot_paper.recipe import Rows
from torchspot_paper.tables import table

Found = dict[tuple[str, str, str], dict[str, Any]]

_COMPARED = ("default", "paper", "reference", "changed")


def table1(rows: Rows) -> Iterator[str]:
    """Methods by tasks; the parts of DASPOT; other splits; and pictures."""
    found = _found(rows)
    yield "Accuracy of the last iterate on the target's test pictures in percent: mean, worst seed, (published)."
    yield _by_task(found, PAPER_TASKS, lambda preset: preset in _COMPARED, _last)
    yield "The same runs by the best accuracy on test pictures on the way, which no user can choose by (mean):"
    yield _by_task(found, PAPER_TASKS, lambda preset: preset in _COMPARED, _best)
    if any(preset not in _COMPARED for _, _, preset in found):
        ablated = [task for task in PAPER_TASKS if any(t == task and p not in _COMPARED for t, _, p in found)]
        yield "DASPOT without one of its parts, last iterate:"
        yield _by_task(found, ablated, lambda preset: preset not in _COMPARED or preset == "default", _last, "daspot")
    if any(task in OTHER_SPLITS for task, _, _ in found):
        yield "USPS split anew (80 % for training), as in the authors' scripts:"
        yield _by_task(found, OTHER_SPLITS, lambda preset: True, _last)
    for task in PAPER_TASKS:
        if (task, "daspot", "default") in found:
            name = task.replace("->", "_")
            yield f"Generated pairs with their labels, {task}:\n\n![pairs](results/sheets/table1_pairs_{name}.png)"
            yield f"![embeddings](results/sheets/table1_embeddings_{name}.png)"


def runtime(rows: Rows) -> Iterator[str]:
    """Seconds of each method, and their ratio."""
    found = _found(rows)
    lines = [
        [
            task,
            method if preset == "default" else f"{method} ({preset})",
            _number(numbers, "seconds_to_95", "{:.1f}"),
            _number(numbers, "seconds_to_95_worst_seed", "{:.1f}"),
            _number(numbers, "accuracy_last", "{:.1%}"),
            f"{numbers['published']:.0f}" if "published" in numbers else "",
            str(numbers["seeds"]),
        ]
        for (task, method, preset), numbers in sorted(found.items())
    ]
    yield table(["task", "method", "seconds to 95 %", "worst seed", "accuracy then", "published", "seeds"], lines)
    for task in dict.fromkeys(task for task, _, _ in found):
        yield f"{task}: {_ratio(found, task)} (published: 3.1)."


def _ratio(found: Found, task: str) -> str:
    """DeepJDOT's seconds over DASPOT's, each at the faster of its settings."""
    best: dict[str, float] = {}
    for (of_task, method, _), numbers in found.items():
        if of_task == task:
            best[method] = min(numbers.get("seconds_to_95", math.inf), best.get(method, math.inf))
    mine, other = (best.get(method, math.inf) for method in ("daspot", "deepjdot"))
    if math.isinf(other):
        return "DeepJDOT did not get there, so that there is no ratio"
    return f"DeepJDOT takes {other / mine:.2g} times as long as DASPOT"


def tabular(rows: Rows) -> Iterator[str]:
    """Methods by tasks, and where DASPOT warned."""
    found = {(row["setting"]["task"], row["setting"]["method"]): {} for row in rows}  # type: dict[Any, dict[str, Any]]
    for row in rows:
        found[row["setting"]["task"], row["setting"]["method"]][row["metric"]] = row["value"]
    methods, tasks = (list(dict.fromkeys(name[k] for name in found)) for k in (1, 0))
    lines = [
        [
            task,
            *(
                f"{100 * n['accuracy_last']:.1f}, {100 * n['accuracy_worst_seed']:.1f}"
                if (n := found.get((task, method)))
                else ""
                for method in methods
            ),
            f"{found.get((task, 'daspot'), {}).get('conflict', 0):.1%}",
            {0: "", 1: "yes"}.get(found.get((task, "daspot"), {}).get("warned", 0), "in some runs"),
        ]
        for task in tasks
    ]
    yield table(["task", *methods, "contradicts the source", "warns"], lines)


def _found(rows: Rows) -> Found:
    found: Found = {}
    for row in rows:
        s = row["setting"]
        numbers = found.setdefault((s["task"], s["method"], s["preset"]), {"seeds": row["seeds"], "steps": s["steps"]})
        numbers[row["metric"]] = row["value"]
        if "published" in row:
            numbers["published"] = row["published"]
    return found


def _by_task(found: Found, tasks: Sequence[str], presets: Any, cell: Any, method: str | None = None) -> str:
    names = sorted(
        {(m, preset) for task, m, preset in found if presets(preset) and task in tasks and method in (None, m)},
        key=lambda name: (name[0], name[1] != "default", name[1]),
    )
    used = [task for task in tasks if any((task, *name) in found for name in names)]
    lines = [
        [
            m if preset in ("default", "paper", "reference") else f"{m} ({preset})",
            *(cell(found.get((task, m, preset))) for task in used),
            *_facts([found[task, m, preset] for task in used if (task, m, preset) in found]),
        ]
        for m, preset in names
    ]
    return table(["method", *used, "seeds", "steps"], lines)


def _facts(all_numbers: Sequence[dict[str, Any]]) -> tuple[str, str]:
    seeds, steps = (sorted({numbers[name] for numbers in all_numbers}) for name in ("seeds", "steps"))
    return ", ".join(map(str, seeds)), ", ".join(f"{step:,}" for step in steps)


def _last(numbers: dict[str, Any] | None) -> str:
    if numbers is None:
        return ""
    worst = f", {100 * numbers['accuracy_worst_seed']:.1f}" if numbers["seeds"] > 1 else ""
    published = f" ({100 * numbers['published']:.1f})" if "published" in numbers else ""
    return f"{100 * numbers['accuracy_last']:.1f}{worst}{published}"


def _best(numbers: dict[str, Any] | None) -> str:
    return "" if numbers is None else f"{100 * numbers['accuracy_best_on_test']:.1f}"


def _number(numbers: dict[str, Any], metric: str, form: str) -> str:
    return form.format(numbers[metric]) if metric in numbers else "not reached"
