"""Exact transport, Sinkhorn, ROT and SPOT on section 5.1: error against time and peak memory as the data grows."""

__all__ = ["draw", "run", "settings"]

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

from torchspot import SPOT, engines, presets
from torchspot.baselines import ROT
from torchspot.exact import emd, sinkhorn
from torchspot_paper.clock import Clock, OnRows, in_own_process, on_rows
from torchspot_paper.problems import gaussians
from torchspot_paper.recipe import Call, Outcome, marginals_beside_noise

SIZES = (1000, 3000, 10_000, 100_000, 1_000_000)
SINKHORN, ROT_EPSILON = 0.05, 0.1

Solved = tuple[float, Callable[[], dict[str, float]]]
"""A value, and what else there is to say, found after the clock has stopped."""


def settings(quick: bool) -> list[OnRows]:
    """Smallest first."""
    return on_rows(_METHODS, (200,) if quick else SIZES)


def run(call: Call, setting: OnRows) -> list[Outcome]:
    """In a process of its own, so that the peak memory is its own (unless it is quick)."""
    taken = in_own_process(_solved, setting, call.quick)
    return [Outcome({"method": setting.method, "n": setting.n}, taken.as_metrics(), 1, taken.seconds)]


def _solved(clock: Clock, setting: OnRows, quick: bool) -> dict[str, float]:
    x, y = gaussians().sample(setting.n, 0)
    with clock:
        value, judge = _METHODS[setting.method](x, y, quick)
    return {"error": value / 5.0 - 1} | judge()


def _spot(x: Any, y: Any, quick: bool) -> Solved:
    """From random weights: the warm start would be the answer."""
    preset = replace(presets.default(), warm_start=False)
    spot = SPOT(preset=preset, steps=30 if quick else None, engine=engines.Eager("cpu")).fit(x, y)
    start = spot.history_[0]["cost"] / 5.0 - 1
    return spot.distance_.value, lambda: {
        "error_at_step_0": start,
        **marginals_beside_noise(spot.plans_, gaussians(), quick=quick),
    }


def _rot(x: Any, y: Any, quick: bool) -> Solved:
    steps = 30 if quick else 2000
    return ROT(epsilon=ROT_EPSILON, steps=steps, engine=engines.Eager("cpu")).fit(x, y).duals_[0], dict


def _emd(x: Any, y: Any, quick: bool) -> Solved:
    return emd(gaussians().cost, torch.from_numpy(x), torch.from_numpy(y)), dict


def _sinkhorn(x: Any, y: Any, quick: bool) -> Solved:
    return sinkhorn(gaussians().cost, torch.from_numpy(x), torch.from_numpy(y), epsilon=SINKHORN), dict


_METHODS: dict[str, Callable[[Any, Any, bool], Solved]] = {
    "emd": _emd,
    "sinkhorn": _sinkhorn,
    "rot": _rot,
    "spot": _spot,
}


def draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Error against seconds and against peak memory; one line a method, one point for each n, larger for more."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    for method in _METHODS:
        sizes = sorted({row["setting"]["n"] for row in rows if row["setting"]["method"] == method})
        found = {
            (row["setting"]["n"], row["metric"]): row["value"] for row in rows if row["setting"]["method"] == method
        }
        errors = [100 * abs(found[n, "error"]) for n in sizes]
        for axis, along in zip(axes, ("seconds", "peak_megabytes"), strict=True):
            xs = [found[n, along] for n in sizes]
            (line,) = axis.plot(xs, errors, linewidth=0.8, label=method)
            axis.scatter(xs, errors, [n**0.4 for n in sizes], color=line.get_color(), alpha=0.7)
            axis.set(xscale="log", yscale="log", xlabel=along.replace("_", " "))
    axes[0].set_ylabel("error of the distance, %")
    axes[0].legend()
    counts = {row["setting"]["n"] for row in rows}
    figure.suptitle(f"larger points: more data, {min(counts):,} to {max(counts):,} rows")
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)
