"""The pictures that a run leaves in its folder."""

__all__ = ["draw_density", "draw_run"]

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchspot import costs
from torchspot.cli.points import GRID, Grid
from torchspot.data import as_sampler
from torchspot.plans import PooledPlan, PushforwardPlan
from torchspot.plots import (
    are_drawable,
    plot_barycenter,
    plot_convergence,
    plot_density,
    plot_pairs,
    plot_sheet,
    unit_range,
)
from torchspot.random import Key, generator
from torchspot.types import Record, Samples

_PAIRS, _DATA, _PICTURES = 200, 3000, 64


def draw_run(
    plan: Any,
    history: Sequence[Record],
    sources: Sequence[Any],
    out: Path,
    truth: float | None,
) -> list[str]:
    """Pairs, the course of training and what else there is to see of this plan; the names of the files."""
    shown = _PICTURES if plan.of_pictures else _DATA
    data = tuple(as_sampler(source).draw(shown, generator(Key(0, "picture"))) for source in sources)
    if are_drawable(data):
        plot_sheet(unit_range(plan.sample(_PICTURES, seed=0)), out / "pairs.png", data=unit_range(data))
    else:
        title = f"Paired samples, cost {plan.cost}"
        plot_pairs(plan.sample(_PAIRS, seed=0), out / "pairs.png", data=data, title=title)
    plot_convergence(history, out / "convergence.png", truth=truth)
    files = ["pairs.png", "convergence.png"]
    weights = None if plan.of_pictures else costs.barycenter_weights(plan.cost, len(sources))
    if weights is not None and len(sources) > 2 and "epsilon" not in plan.facts:
        plot_barycenter(plan.sample(_PAIRS, seed=0), weights, out / "barycenter.png", data=data, title="Barycenter")
        files.append("barycenter.png")
    if plan.shapes == ((1,), (1,)) and "epsilon" in plan.facts:
        grid = Grid.over(plan, GRID)
        log_density = plan.log_density(*grid.points(plan.shapes)).cpu().numpy()
        draw_density(plan, grid, log_density, out / "density.png", data)
        files.append("density.png")
    return files


def draw_density(
    plan: PushforwardPlan | PooledPlan, grid: Grid, log_density: np.ndarray, file: Path, data: Samples = ()
) -> Path:
    """The density on a grid of pairs of numbers."""
    x, y = grid.lines
    title = f"Density of the plan, cost {plan.cost}, ε = {plan.facts['epsilon']:g}"
    return plot_density(x, y, np.exp(log_density).reshape(len(x), len(y)), file, data=data, title=title)
