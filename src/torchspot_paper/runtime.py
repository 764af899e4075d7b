"""Seconds until 95 % of USPS test pictures are labelled right from MNIST's labels, DASPOT beside DeepJDOT."""

__all__ = ["draw", "run", "settings"]

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchspot_paper.adaptation_figures import draw_accuracies
from torchspot_paper.adaptations import curves_of, fitted
from torchspot_paper.datasets import data_folder
from torchspot_paper.domains import made_task, real_task
from torchspot_paper.recipe import Call, Outcome, Rows

TASKS, LEVEL, RUNS = ("mnist->usps resized", "mnist->usps"), 0.95, 3
PUBLISHED = {"daspot": 169.0, "deepjdot": 518.0}
"""Seconds on a GTX 1080 Ti."""


@dataclass(frozen=True)
class Setting:
    """A task, a method, and how fast it is made to go."""

    task: str
    method: str
    preset: str

    def __str__(self) -> str:
        return f"{self.task}/{self.method}/{self.preset}"


def settings(quick: bool) -> list[Setting]:
    """DASPOT, DeepJDOT faster and as it is in table 1, and the source's classifier alone."""
    methods = (("daspot", "default"), ("deepjdot", "fast"), ("source-only", "default"), ("deepjdot", "default"))
    return [Setting(task, *method) for method in methods for task in (TASKS[:1] if quick else TASKS)]


def run(call: Call, setting: Setting) -> list[Outcome]:
    """Trains one seed after the other; what the first run in a process has to load is left to one that is not timed."""
    task = made_task(setting.task) if call.quick else real_task(setting.task, data_folder(call.data))
    fitted(call, task, setting.method, "warm-up", 0)
    seeds = range(call.runs(RUNS, quick=1))
    runs = [fitted(call, task, setting.method, setting.preset, seed, enough=LEVEL) for seed in seeds]
    reached = [run.watched.seconds_to(LEVEL) for run in runs]
    facts: dict[str, Any] = {"task": setting.task, "method": setting.method, "preset": setting.preset}
    facts["steps"] = max(run.watched.steps[-1] for run in runs)
    metrics = {"accuracy_last": statistics.fmean(run.last for run in runs)}
    if all(seconds is not None for seconds in reached):
        known = [seconds for seconds in reached if seconds is not None]
        metrics |= {"seconds_to_95": statistics.fmean(known), "seconds_to_95_worst_seed": max(known)}
    published = {"seconds_to_95": PUBLISHED[setting.method]} if setting.method in PUBLISHED else {}
    return [
        Outcome(facts, metrics, len(runs), statistics.fmean(run.seconds for run in runs), published, curves_of(runs))
    ]


def draw(rows: Rows, file: Path) -> None:
    """Accuracy against seconds."""
    draw_accuracies(rows, file)
