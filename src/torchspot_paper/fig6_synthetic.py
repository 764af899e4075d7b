"""Figure 6, synthetic data: generated pairs of two problems in the plane, with numbers beside the picture."""

__all__ = ["draw", "run", "settings"]

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.collections import LineCollection
from scipy.stats import spearmanr

from torchspot import SPOT, costs, evaluation, presets
from torchspot.exact import couple, emd
from torchspot_paper.problems import Points, gaussians, sine
from torchspot_paper.recipe import Call, Outcome

N, WIDTH, RATE, STEPS, SEEDS, SHOWN = 100_000, 32, 1e-3, 10_000, 3, 200
BLOCK, BLOCKS = 4096, 8
COST = costs.squared_euclidean
Sample = Callable[[int, int], tuple[Points, Points]]
_ROWS: dict[str, tuple[Sample, float | None]] = {
    "gaussians": (gaussians(cost=COST).sample, gaussians(cost=COST).value),
    "sine": (sine, None),
}
"""n and a seed in, samples out; and the optimal cost, where it is known."""


def settings(quick: bool) -> list[str]:
    """The two rows of the figure, also when it is quick."""
    return list(_ROWS)


def run(call: Call, name: str) -> list[Outcome]:
    """The default recipe with 32 units a layer, at the paper's rate; all seeds as replicas."""
    sample, known = _ROWS[name]
    xs = sample(2000 if call.quick else N, 0)
    seeds, steps = call.runs(SEEDS), 30 if call.quick else STEPS
    preset = replace(presets.default(RATE), width=WIDTH)
    started = time.perf_counter()
    spot = SPOT(cost=COST, preset=preset, steps=steps, replicas=seeds, seed=0, engine=call.engine()).fit(*xs)
    seconds = time.perf_counter() - started
    truth, optimal = _exact(sample, known, *((200, 2) if call.quick else (BLOCK, BLOCKS)))
    values = [plan.expected_cost().value for plan in spot.plans_]
    ratios = [marginal.ratio for plan in spot.plans_ for marginal in evaluation.audit(plan, *xs).marginals]
    metrics = {
        "error": statistics.fmean(abs(value / truth - 1) for value in values),
        "worst_error": max(abs(value / truth - 1) for value in values),
        "error_at_step_0": spot.history_[0]["cost"] / truth - 1,
        "worst_marginal_over_floor": max(ratios),
        "rank_correlation": statistics.fmean(_rank_correlation(*plan.sample(10_000, seed=0)) for plan in spot.plans_),
        "rank_correlation_of_optimal_plan": optimal,
    }
    pairs = [x[:SHOWN].double().cpu().numpy() for x in spot.plans_[0].sample(SHOWN, seed=1)]
    data = [x[:2000] for x in xs]
    shown = {
        f"{kind}_{k}_{axis}": part[:, axis].round(3).tolist()
        for kind, parts in (("data", data), ("pairs", pairs))
        for k, part in enumerate(parts)
        for axis in (0, 1)
    }
    setting = {"method": "spot", "problem": name, "width": WIDTH, "lr": RATE, "steps": spot.plan_.facts["steps"]}
    return [Outcome(setting, metrics, seeds, seconds, {}, shown)]


def _exact(sample: Sample, known: float | None, size: int, blocks: int) -> tuple[float, float]:
    """The known value, or exact transport averaged over blocks of fresh data; and the exact plan's rank correlation."""
    drawn = [tuple(map(torch.from_numpy, sample(size, 10**6 + k))) for k in range(blocks)]
    value = known or statistics.fmean(emd(COST, *xs) for xs in drawn)
    x, y = drawn[0]
    return value, _rank_correlation(x, y[couple(COST, x, y).partner])


def _rank_correlation(x: torch.Tensor, y: torch.Tensor) -> float:
    """Spearman's, of the second coordinates: whether upper mass goes to the upper region."""
    return float(spearmanr(x[:, 1].cpu().numpy(), y[:, 1].cpu().numpy()).statistic)


def draw(curves: Sequence[dict[str, Any]], file: Path) -> None:
    """Data on the left, generated pairs joined by lines on the right; one row for each problem."""
    figure, axes = plt.subplots(
        len(curves), 2, figsize=(10, 4 * len(curves)), squeeze=False, sharex="row", sharey="row"
    )
    for row, curve in zip(axes, sorted(curves, key=lambda c: c["setting"]["problem"]), strict=True):
        for axis, kind in zip(row, ("data", "pairs"), strict=True):
            points = [np.stack([curve[f"{kind}_{k}_{a}"] for a in (0, 1)], axis=1) for k in (0, 1)]
            if kind == "pairs":
                axis.add_collection(LineCollection(list(np.stack(points, axis=1)), colors="black", linewidths=0.3))
            for x, colour in zip(points, ("tab:blue", "tab:orange"), strict=True):
                axis.scatter(*x.T, s=4, color=colour, zorder=2)
            axis.set_title(f"{curve['setting']['problem']}: {'data' if kind == 'data' else 'generated pairs'}")
            axis.set_aspect("equal")
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)
