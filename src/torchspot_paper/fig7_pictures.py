"""Figure 7: photographs with paintings, and shoes with their edges, from unpaired data."""

__all__ = ["draw", "run", "settings"]

import time
from dataclasses import dataclass
from pathlib import Path

from torchspot_paper.picture_tables import draw_numbers, sheet_name
from torchspot_paper.pictures import judged, monet_task, shoes_task, spot_of_pictures, steepest, write_sheet
from torchspot_paper.recipe import Call, Outcome, Rows

EXPERIMENT, STEPS = "fig7", 6_000
TASKS = {"edges-shoes": shoes_task, "photo-monet": monet_task}


@dataclass(frozen=True)
class Setting:
    """A task and a seed."""

    task: str
    seed: int

    def __str__(self) -> str:
        return f"{self.task}/seed={self.seed}"


def settings(quick: bool) -> list[Setting]:
    """Both tasks."""
    return [Setting(task, seed) for seed in range(1) for task in TASKS]


def run(call: Call, setting: Setting) -> list[Outcome]:
    """Trains, judges, and writes the contact sheet of seed 0."""
    task = TASKS[setting.task](call)
    started = time.perf_counter()
    spot = spot_of_pictures(call, task, seed=setting.seed, steps=STEPS)
    plan, seconds = spot.plan_, time.perf_counter() - started
    if setting.seed == 0:
        write_sheet(plan, task, call.out / "sheets" / sheet_name(EXPERIMENT, "spot", setting.task))
    facts = {"task": task.name, "method": "spot", "preset": "default", "seed": setting.seed}
    return [Outcome(facts | {"steps": plan.facts["steps"]}, judged(plan, task, call) | steepest(spot), 1, seconds)]


def draw(rows: Rows, file: Path) -> None:
    """Pairing and quality of each task."""
    draw_numbers(rows, ("contour_ratio", "pairing_ratio", "frechet_x", "frechet_y"), file)
