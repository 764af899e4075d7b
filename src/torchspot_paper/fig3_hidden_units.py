"""Figure 3: the error of section 5.1's distance against the number of hidden units."""

__all__ = ["draw", "run", "settings"]

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from torchspot import SPOT, presets
from torchspot_paper.problems import gaussians
from torchspot_paper.recipe import Call, Outcome, errors_of, marginals_beside_noise, paper_networks

N, SEEDS = 100_000, 50
WIDTHS = tuple(2**k for k in range(1, 11))
QUICK_WIDTHS = (2, 4, 16)
NARROW = 32
"""Networks below this width train twice as long: so few units move slowly."""


def settings(quick: bool) -> list[int]:
    """Widths, the widest first."""
    return sorted(QUICK_WIDTHS if quick else WIDTHS, reverse=True)


def run(call: Call, width: int) -> list[Outcome]:
    """All seeds of a width, as replicas."""
    preset = paper_networks(presets.default(), width)
    xs = gaussians().sample(2000 if call.quick else N, 0)
    seeds, planned = call.runs(SEEDS), preset.sizes(2).steps
    steps = 30 if call.quick else 2 * planned if width < NARROW else planned
    started = time.perf_counter()
    spot = SPOT(preset=preset, steps=steps, replicas=seeds, seed=0, engine=call.engine()).fit(*xs)
    seconds = time.perf_counter() - started
    values = [plan.expected_cost().value for plan in spot.plans_]
    metrics = errors_of(values, 5.0) | {"error_at_step_0": spot.history_[0]["cost"] / 5.0 - 1}
    metrics |= marginals_beside_noise(spot.plans_, gaussians(), quick=call.quick)
    setting = {"method": "spot", "width": width, "lr": preset.rates(width)[0], "steps": steps}
    return [Outcome(setting, metrics, seeds, seconds, {}, {"errors": [value / 5.0 - 1 for value in values]})]


def draw(curves: Sequence[dict[str, Any]], file: Path) -> None:
    """A box plot of the runs' errors for each width."""
    widths = sorted(curve["setting"]["width"] for curve in curves)
    by_width = {curve["setting"]["width"]: curve["errors"] for curve in curves}
    figure, axis = plt.subplots(figsize=(7, 4))
    axis.boxplot([[100 * error for error in by_width[w]] for w in widths], tick_labels=[str(w) for w in widths])
    axis.axhline(0, color="black", linewidth=0.8, linestyle=":")
    axis.set(
        xlabel="hidden units a layer",
        ylabel="error of a run, %",
        yscale="symlog",
        title="Figure 3: error against width",
    )
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)
