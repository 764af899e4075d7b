"""Maps by SPOT, by POT's transports and by mini-batch regression: error against time and memory as the data grows."""

__all__ = ["draw", "run", "settings"]

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

from torchspot import SPOT, costs, engines, latents, presets
from torchspot.baselines import MinibatchRegression
from torchspot.exact import require_pot
from torchspot_paper.clock import Clock, OnRows, in_own_process, on_rows
from torchspot_paper.maps import unexplained_by
from torchspot_paper.problems import Points, map_problems
from torchspot_paper.recipe import Call, Outcome

PROBLEM, DIM, JUDGED = "softmax", 8, 20_000
SIZES = (1000, 10_000, 100_000, 1_000_000)
BUDGET, PACED = 60.0, 200
"""Seconds for those that can use any, and the steps by which their pace is found."""
SINKHORN = 0.02
"""ε as a part of the mean cost between samples."""

Move = Callable[[Points], torch.Tensor]


def settings(quick: bool) -> list[OnRows]:
    """Smallest first."""
    return on_rows(_METHODS, (200,) if quick else SIZES)


def run(call: Call, setting: OnRows) -> list[Outcome]:
    """In a process of its own, so that the peak memory is its own (unless it is quick)."""
    taken = in_own_process(_solved, setting, call.quick)
    about = {"problem": PROBLEM, "d": DIM, "method": setting.method, "n": setting.n}
    return [Outcome(about, taken.as_metrics(), 1, taken.seconds)]


def _solved(clock: Clock, setting: OnRows, quick: bool) -> dict[str, float]:
    problem = map_problems(DIM)[PROBLEM]
    x, y = problem.sample(setting.n, 0)
    steps = 30 if quick else _steps_within(BUDGET, setting.method, x, y)
    with clock:
        move = _METHODS[setting.method](x, y, steps)
    fresh, optimal = problem.pairs(500 if quick else JUDGED, 5)
    moved = move(fresh).double().cpu()
    cost = float(costs.squared_euclidean(torch.from_numpy(fresh), moved).mean())
    found = {"uvp": unexplained_by(moved, torch.from_numpy(optimal)), "signed_error": cost / problem.value - 1}
    return found | ({"steps": float(steps)} if setting.method in _PACED else {})


def _steps_within(seconds: float, method: str, x: Points, y: Points) -> int:
    """So many steps fill this time, by the pace of a short run (without what it takes to begin)."""
    if method not in _PACED:
        return 0
    took = []
    for steps in (PACED // 4, PACED):
        started = time.perf_counter()
        _METHODS[method](x, y, steps)
        took.append(time.perf_counter() - started)
    pace = (took[1] - took[0]) / (PACED - PACED // 4)
    return max(PACED, int((seconds - took[0]) / pace))


def _spot(x: Points, y: Points, steps: int) -> Move:
    """Anchored at the first marginal, without warm start."""
    preset = replace(presets.anchored(), warm_start=False)
    latent = latents.anchored(noise_dim=0)
    spot = SPOT(
        cost=costs.squared_euclidean, latent=latent, preset=preset, steps=steps, engine=engines.Eager("cpu")
    ).fit(x, y)
    return spot.plan_.transport


def _minibatch(x: Points, y: Points, steps: int) -> Move:
    fitted = MinibatchRegression(steps=steps, engine=engines.Eager("cpu")).fit(x, y)
    return lambda points: torch.from_numpy(fitted.transform(points))


def _emd(x: Points, y: Points, steps: int) -> Move:
    require_pot()
    from ot.da import EMDTransport

    return _moved_by(EMDTransport(max_iter=10_000_000), x, y)


def _sinkhorn(x: Points, y: Points, steps: int) -> Move:
    require_pot()
    from ot.da import SinkhornTransport

    scale = float(costs.squared_euclidean(torch.from_numpy(x), torch.from_numpy(y)).mean())  # rows are unpaired
    return _moved_by(SinkhornTransport(reg_e=SINKHORN * scale, method="sinkhorn_log"), x, y)


def _linear(x: Points, y: Points, steps: int) -> Move:
    require_pot()
    from ot.da import LinearTransport

    return _moved_by(LinearTransport(), x, y)


def _moved_by(transport: Any, x: Points, y: Points) -> Move:
    transport.fit(Xs=x, Xt=y)
    return lambda points: torch.from_numpy(transport.transform(Xs=points))


_METHODS: dict[str, Callable[[Points, Points, int], Move]] = {
    "linear": _linear,
    "emd": _emd,
    "sinkhorn": _sinkhorn,
    "minibatch": _minibatch,
    "spot": _spot,
}
_PACED = ("minibatch", "spot")


def draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """UVP against the number of points, and peak memory; one line a method."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4))
    found = {(r["setting"]["method"], r["setting"]["n"], r["metric"]): r["value"] for r in rows}
    for method in _METHODS:
        sizes = sorted({n for name, n, _ in found if name == method})
        axes[0].plot(sizes, [100 * found[method, n, "uvp"] for n in sizes], "o-", label=method)
        axes[1].plot(sizes, [found[method, n, "peak_megabytes"] for n in sizes], "o-", label=method)
    for axis, label in zip(axes, ("L2-UVP, %", "peak memory, MB"), strict=True):
        axis.set(xscale="log", yscale="log", xlabel="rows of each data set", ylabel=label)
    axes[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)
