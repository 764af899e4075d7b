"""Exact transport, Sinkhorn, ROT and SPOT on section 5.1: error against time and peak memory as the data grows."""

__all__ = ["draw", "run", "settings"]

import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

from torchspot import SPOT, engines
from torchspot.baselines import ROT
from torchspot.exact import emd, sinkhorn
from torchspot_paper.problems import gaussians
from torchspot_paper.recipe import Call, Outcome

SIZES = (1000, 3000, 10_000, 100_000, 1_000_000)
MOST = {"emd": 10_000, "sinkhorn": 10_000}
"""Points beyond which a matrix of all pairs does not fit, or takes hours."""
SINKHORN, ROT_EPSILON = 0.05, 0.1


@dataclass(frozen=True)
class Setting:
    """A method on so many points."""

    method: str
    n: int

    def __str__(self) -> str:
        return f"{self.method}/{self.n}"


def settings(quick: bool) -> list[Setting]:
    """Smallest first."""
    sizes = (200,) if quick else SIZES
    return [Setting(method, n) for n in sizes for method in _METHODS if n <= MOST.get(method, n)]


def run(call: Call, setting: Setting) -> list[Outcome]:
    """In a process of its own, so that the peak memory is its own (unless it is quick)."""
    device = str(call.engine().device)
    if call.quick:
        return [_outcome(setting, *_solved(setting, call.quick, device))]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_solve, args=(theirs, setting, call.quick, device))
    process.start()
    solved = ours.recv()
    process.join()
    return [_outcome(setting, *solved)]


def _outcome(setting: Setting, value: float, seconds: float, before: float, peak: float) -> Outcome:
    metrics = {"error": value / 5.0 - 1, "seconds": seconds, "peak_megabytes": peak, "megabytes_before": before}
    return Outcome({"method": setting.method, "n": setting.n}, metrics, 1, seconds)


def _solve(pipe: Any, setting: Setting, quick: bool, device: str) -> None:
    torch.set_num_threads(1)
    pipe.send(_solved(setting, quick, device))


def _solved(setting: Setting, quick: bool, device: str) -> tuple[float, float, float, float]:
    """The value, the seconds it took, and the peak memory before and after."""
    x, y = gaussians().sample(setting.n, 0)
    before = _peak_megabytes()
    started = time.perf_counter()
    value = _METHODS[setting.method](x, y, quick, device)
    return value, time.perf_counter() - started, before, _peak_megabytes()


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _spot(x: Any, y: Any, quick: bool, device: str) -> float:
    return SPOT(steps=30 if quick else None, engine=engines.choose_engine(device)).fit(x, y).distance_.value


def _rot(x: Any, y: Any, quick: bool, device: str) -> float:
    steps = 30 if quick else 2000
    return ROT(epsilon=ROT_EPSILON, steps=steps, engine=engines.choose_engine(device)).fit(x, y).duals_[0]


def _emd(x: Any, y: Any, quick: bool, device: str) -> float:
    return emd(gaussians().cost, torch.from_numpy(x), torch.from_numpy(y))


def _sinkhorn(x: Any, y: Any, quick: bool, device: str) -> float:
    return sinkhorn(gaussians().cost, torch.from_numpy(x), torch.from_numpy(y), epsilon=SINKHORN)


_METHODS: dict[str, Callable[[Any, Any, bool, str], float]] = {
    "emd": _emd,
    "sinkhorn": _sinkhorn,
    "rot": _rot,
    "spot": _spot,
}


def draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Error against seconds and against peak memory; one line a method, one point for each n."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    for method in _METHODS:
        sizes = sorted({row["setting"]["n"] for row in rows if row["setting"]["method"] == method})
        found = {
            (row["setting"]["n"], row["metric"]): row["value"] for row in rows if row["setting"]["method"] == method
        }
        errors = [100 * abs(found[n, "error"]) for n in sizes]
        for axis, along in zip(axes, ("seconds", "peak_megabytes"), strict=True):
            xs = [found[n, along] for n in sizes]
            axis.plot(xs, errors, marker="o", label=method)
            for n, x, error in zip(sizes, xs, errors, strict=True):
                axis.annotate(f"{n:g}", (x, error), fontsize=6, textcoords="offset points", xytext=(3, 3))
            axis.set(xscale="log", yscale="log", xlabel=along.replace("_", " "))
    axes[0].set_ylabel("error of the distance, %")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    plt.close(figure)
