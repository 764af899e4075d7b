"""Table 1: labels of one set of digits learned from another, DASPOT beside other methods; and DASPOT part by part."""

__all__ = ["draw", "run", "settings"]

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchspot_paper.adaptation_figures import draw_accuracies, write_embeddings, write_pairs
from torchspot_paper.adaptations import RECIPES, Fitted, curves_of, fitted
from torchspot_paper.datasets import data_folder
from torchspot_paper.domains import OTHER_SPLITS, PAPER_TASKS, AdaptationTask, made_task, real_task
from torchspot_paper.recipe import Call, Outcome, Rows

EXPERIMENT = "table1"
RUNS = {"daspot": 3, "deepjdot": 3, "stochjdot": 3, "rot": 3, "cogan": 3, "source-only": 3, "oracle": 3}
"""Seeds of each method where there are several."""
LEVEL = 0.95
PUBLISHED = {
    ("rot", "mnist->usps"): 0.726,
    ("rot", "usps->mnist"): 0.605,
    ("rot", "svhn->mnist"): 0.629,
    ("stochjdot", "mnist->usps"): 0.936,
    ("stochjdot", "usps->mnist"): 0.905,
    ("stochjdot", "svhn->mnist"): 0.676,
    ("stochjdot", "mnist->mnistm"): 0.667,
    ("deepjdot", "mnist->usps"): 0.957,
    ("deepjdot", "usps->mnist"): 0.964,
    ("deepjdot", "svhn->mnist"): 0.967,
    ("deepjdot", "mnist->mnistm"): 0.924,
    ("daspot", "mnist->usps"): 0.975,
    ("daspot", "usps->mnist"): 0.965,
    ("daspot", "svhn->mnist"): 0.962,
    ("daspot", "mnist->mnistm"): 0.949,
}
"""Of the paper, by method and task; those of DASPOT are the best on the test pictures of one run."""
ABLATED = ("mnist->usps", "svhn->mnist", "mnist->mnistm")
"""Tasks on which parts of the recipe are left out one by one."""


@dataclass(frozen=True)
class Setting:
    """A task, a method, and how it is trained."""

    task: str
    method: str
    preset: str = "default"

    def __str__(self) -> str:
        return f"{self.task}/{self.method}/{self.preset}"


def settings(quick: bool) -> list[Setting]:
    """Every method on every task, then the parts of DASPOT, then the splits of the paper's scripts."""
    tasks = PAPER_TASKS[:1] if quick else PAPER_TASKS
    others = ("deepjdot", "stochjdot", "rot", "cogan", "source-only", "oracle")
    every = [
        Setting(task, method, preset)
        for task in tasks
        for method, preset in (
            ("daspot", "default"),
            ("daspot-paper", "paper"),
            ("daspot-reference", "reference"),
            *((method, "default") for method in others),
            *((method, "changed") for method in ("deepjdot", "source-only")),
        )
    ]
    parts = [Setting(task, "daspot", preset) for task in ABLATED for preset in RECIPES if preset != "default"]
    return [*every, *(parts[:1] if quick else parts), *(Setting(task, "daspot") for task in OTHER_SPLITS if not quick)]


def run(call: Call, setting: Setting) -> Iterator[Outcome]:
    """Trains with several seeds and judges each by the target's test pictures; tells how it stands after each."""
    task = made_task(setting.task) if call.quick else real_task(setting.task, data_folder(call.data))
    runs: list[Fitted] = []
    for seed in range(count := call.runs(RUNS.get(setting.method, 1), quick=1)):
        runs.append(fitted(call, task, setting.method, setting.preset, seed))
        yield _outcome(setting, runs, ended=len(runs) == count)
    _write_pictures(call, setting, task, runs[0])


def _outcome(setting: Setting, runs: Sequence[Fitted], *, ended: bool) -> Outcome:
    facts: dict[str, Any] = {"task": setting.task, "method": setting.method, "preset": setting.preset}
    last = [run.last for run in runs]
    metrics = {
        "accuracy_last": statistics.fmean(last),
        "accuracy_worst_seed": min(last),
        "accuracy_best_on_test": statistics.fmean(max(run.watched.accuracy) for run in runs),
    }
    reached = [seconds for run in runs if (seconds := run.watched.seconds_to(LEVEL)) is not None]
    if ended and len(reached) == len(runs):
        metrics["seconds_to_95"] = statistics.fmean(reached)
    known = PUBLISHED.get(("daspot" if setting.method.startswith("daspot") else setting.method, setting.task))
    published = {} if known is None or setting.preset not in _COMPARED else {"accuracy_last": known}
    seconds = statistics.fmean(run.seconds for run in runs)
    facts["steps"] = runs[0].watched.steps[-1]
    return Outcome(facts, metrics, len(runs), seconds, published, curves_of(runs))


_COMPARED = ("default", "paper", "reference")


def draw(rows: Rows, file: Path) -> None:
    """Accuracy against seconds, task by task."""
    draw_accuracies(rows, file)


def _write_pictures(call: Call, setting: Setting, task: AdaptationTask, first: Fitted) -> None:
    """Generated pairs and embeddings of the first run of the default recipe."""
    if (setting.method, setting.preset) != ("daspot", "default"):
        return
    folder, name = call.out / "sheets", setting.task.replace("->", "_").replace(" ", "_").replace("/", "_")
    write_pairs(first.estimator, folder / f"{EXPERIMENT}_pairs_{name}.png")
    before = fitted(call, task, "source-only", "default", 0).estimator
    write_embeddings(before, first.estimator, task, folder / f"{EXPERIMENT}_embeddings_{name}.png")
