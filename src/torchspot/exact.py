"""Exact optimal transport between small samples, to compare with and to measure by."""

__all__ = [
    "Assign",
    "Coupling",
    "MissingPOT",
    "by_pot",
    "c_transform",
    "cost_matrix",
    "couple",
    "emd",
    "matched",
    "multimarginal_sinkhorn",
    "require_pot",
    "sinkhorn",
]

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from torchspot.errors import TorchspotError
from torchspot.types import Cost, Samples, Values

Assign = Callable[[Float[Tensor, "batch batch"]], Int[Tensor, " batch"]]
"""A matrix of costs in, the best column for each row out."""

_CHUNK = 1 << 23
_MOST_PIVOTS = 10_000_000
_CLOSE, _UNDERFLOW = 1e-6, 500.0


class MissingPOT(TorchspotError):
    """Exact transport was asked for, and POT is not installed."""


@dataclass(frozen=True)
class Coupling:
    """An optimal coupling of two empirical laws, and its potentials: f_i + g_j ≤ c(x_i, y_j)."""

    cost: float
    partner: Int[Tensor, " batch"]
    """The row of y that belongs to each row of x, where there are as many of both."""
    f: Values
    g: Values


def require_pot() -> Any:
    """POT, or an error that says how to get it and what works without."""
    # POT opens JAX where it is installed, and JAX takes three quarters of a GPU's memory at once unless told not to.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import ot
    except ImportError as error:
        raise MissingPOT(
            "exact transport (evaluation.certify, exact.emd) needs POT. Install it with: "
            "pip install 'torchspot[exact]'. Without it fitting, sampling and evaluation.audit work as they are."
        ) from error
    return ot


def couple(cost: Cost, x: Float[Tensor, "batch *shape"], y: Float[Tensor, "rows *shape"]) -> Coupling:
    """The optimal coupling of two samples, with its potentials, by POT's network simplex."""
    matrix = cost_matrix(cost, x, y).numpy()
    plan, log = require_pot().emd([], [], matrix, numItermax=_MOST_PIVOTS, log=True)
    return Coupling(
        float(log["cost"]),
        torch.from_numpy(plan.argmax(axis=1)),
        torch.from_numpy(np.asarray(log["u"])),
        torch.from_numpy(np.asarray(log["v"])),
    )


def emd(
    cost: Cost,
    x: Float[Tensor, "batch *shape"],
    y: Float[Tensor, "rows *shape"],
    *,
    shares: tuple[Float[np.ndarray, " batch"], Float[np.ndarray, " rows"]] | None = None,
) -> float:
    """The optimal cost between two empirical laws, by POT's network simplex. Without shares all rows count alike."""
    a, b = shares or ([], [])
    return float(require_pot().emd2(a, b, cost_matrix(cost, x, y).numpy(), numItermax=_MOST_PIVOTS))


def sinkhorn(
    cost: Cost,
    x: Float[Tensor, "batch *shape"],
    y: Float[Tensor, "rows *shape"],
    *,
    epsilon: float,
    iterations: int = 1000,
) -> float:
    """The cost of the entropic plan between two empirical laws, by POT's Sinkhorn, where x lives.

    Stops when the marginals are off by 10⁻⁶, or at `iterations` with whatever they then are.
    """
    matrix = cost_matrix(cost, x, y).to(x.device)
    a = matrix.new_full((len(x),), 1 / len(x))
    b = matrix.new_full((len(y),), 1 / len(y))
    solvers = require_pot().bregman
    solve = solvers.sinkhorn_knopp if float(matrix.max()) < _UNDERFLOW * epsilon else solvers.sinkhorn_log
    plan = solve(a, b, matrix, epsilon, numItermax=iterations, stopThr=_CLOSE, warn=False)
    return float((plan * matrix).sum() / plan.sum())


@torch.no_grad()
def multimarginal_sinkhorn(cost: Cost, xs: Samples, *, epsilon: float, iterations: int = 1000) -> float:
    """The cost of the entropic plan between several empirical laws, on the tensor of all their tuples.

    Time and memory grow as the product of the numbers of rows: for comparison, on a few rows. In logarithms; stops when
    the marginals are off by 10⁻⁶, or at `iterations`.
    """
    sizes = [len(x) for x in xs]
    c = torch.empty(math.prod(sizes), dtype=torch.float64)
    for some in range(0, len(c), _CHUNK):
        places = torch.unravel_index(torch.arange(some, min(some + _CHUNK, len(c))), sizes)
        c[some : some + _CHUNK] = cost(*(x[k] for x, k in zip(xs, places, strict=True)))
    c = c.view(sizes)
    potentials = [torch.zeros(size, dtype=torch.float64) for size in sizes]
    axes = range(len(sizes))

    def along(k: int) -> Float[Tensor, " rows"]:
        return potentials[k].view([-1 if j == k else 1 for j in axes])

    def log_plan() -> Float[Tensor, "..."]:
        made = c / -epsilon
        for k in axes:
            made += along(k)
        return made

    for _ in range(iterations):
        off = 0.0
        for k in axes:
            logs = log_plan().logsumexp([j for j in axes if j != k])
            off = max(off, float((logs.exp() - 1 / sizes[k]).abs().sum()))
            potentials[k] -= logs + math.log(sizes[k])
        if off < _CLOSE:
            break
    plan = log_plan().exp()
    return float((plan * c).sum() / plan.sum())


def matched(cost: Cost, xs: Samples, *, sweeps: int = 2, assign: Assign | None = None) -> Samples:
    """The samples (of equal size) in an order in which Σ_k c(x_1k, …, x_mk) is least.

    Exact for two marginals. For more the problem is hard: marginal after marginal is matched to the others as they
    stand, a few times over. `assign` solves the assignments; scipy does if None.
    """
    made = list(xs)
    for _ in range(1 if len(made) == 2 else sweeps):
        for place in range(1, len(made)):
            matrix = cost_matrix(cost, *made) if len(made) == 2 else _matrix(cost, made, place)
            made[place] = made[place][(assign or _by_scipy)(matrix)]
    return tuple(made)


def by_pot(matrix: Float[Tensor, "batch batch"]) -> Int[Tensor, " batch"]:
    """The column for each row, each once, with the least sum; several times faster than scipy."""
    plan = require_pot().emd([], [], matrix.numpy(), numItermax=_MOST_PIVOTS)
    return torch.from_numpy(plan.argmax(axis=1))


@torch.no_grad()
def cost_matrix(
    cost: Cost, x: Float[Tensor, "batch *shape"], y: Float[Tensor, "rows *shape"]
) -> Float[Tensor, "batch rows"]:
    """c(x_i, y_j) for all i and j, in float64 on the host; by the cost's own `pairwise` where it has one."""
    if hasattr(cost, "pairwise"):
        return cost.pairwise(x.double().flatten(1), y.double().flatten(1)).cpu()
    return _matrix(cost, (x, y), 1)


def c_transform(
    cost: Cost, x: Float[Tensor, "batch *shape"], y: Float[Tensor, "rows *shape"], g: Float[Tensor, " rows"]
) -> Values:
    """min_j c(x_i, y_j) − g_j for each i, some rows at a time."""
    parts = torch.split(x, max(1, _CHUNK // len(y)))
    return torch.cat([(cost_matrix(cost, part, y) - g).amin(1) for part in parts])


def _by_scipy(matrix: Float[Tensor, "batch batch"]) -> Int[Tensor, " batch"]:
    """The column for each row, each once, with the least sum."""
    _, columns = linear_sum_assignment(matrix.numpy())
    return torch.from_numpy(columns)


@torch.no_grad()
def _matrix(cost: Cost, xs: Sequence[Tensor], place: int) -> Float[Tensor, "batch rows"]:
    """c(x_1i, …, x_mi) for all i, with entry j of one marginal in its place for all j."""
    moving = xs[place]
    size = max(1, _CHUNK // (len(moving) * max(x[0].numel() for x in xs)))
    rows = []
    for parts in zip(*(torch.split(x, size) for k, x in enumerate(xs) if k != place), strict=True):
        fixed = [part.repeat_interleave(len(moving), dim=0) for part in parts]
        repeated = moving.repeat(len(parts[0]), *[1] * (moving.ndim - 1))
        rows.append(cost(*fixed[:place], repeated, *fixed[place:]).view(-1, len(moving)).double().cpu())
    return torch.cat(rows)
