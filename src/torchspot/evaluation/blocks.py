"""Upper bounds of transport: what it costs to couple blocks of the data, on average no less than to couple the laws."""

__all__ = ["Upper", "blocks", "coupled_blocks", "rounded_blocks", "rounded_to"]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from torchspot.costs import squared_euclidean
from torchspot.exact import by_pot, cost_matrix, couple, matched
from torchspot.types import Cost, Plan, Samples

_BLOCK, _LARGE_BLOCK, _LOW_DIM = 1024, 4096, 4
_MOST_LARGE_BLOCKS = 4
_MOST_ROUNDED_BLOCKS = 16
_FEW = 5


@dataclass(frozen=True)
class Upper:
    """The mean cost of couplings of blocks, and a bound of its expectation."""

    mean: float
    bound: float
    """Above the expectation of `mean`, and so above the optimal cost, with the confidence asked for."""
    words: str


def coupled_blocks(cost: Cost, xs: Samples, *, risk: float, progress: Callable[[float], None]) -> Upper:
    """Exact transport between disjoint blocks of two samples; blocks of the larger sample may have more rows.

    With five blocks or more the bound is Student's; with fewer it comes from the potentials f and g of each:
    mean + z √((Var f + Var g) / n).
    """
    size, count = _sizes(xs)
    least = min(map(len, xs))
    sizes = [size if len(x) == least else max(size, min(len(x) // count, _LARGE_BLOCK)) for x in xs]
    couplings = []
    for k in range(count):
        block = (x[k * rows : (k + 1) * rows] for x, rows in zip(xs, sizes, strict=True))
        couplings.append(couple(cost, *block))
        progress((k + 1) / count)
    words = f"exact transport between {blocks(count, *sizes)}"
    if count >= _FEW:
        return _student([c.cost for c in couplings], risk, words)
    mean = math.fsum(c.cost for c in couplings) / count
    variance = math.fsum(float(c.f.var()) / sizes[0] + float(c.g.var()) / sizes[1] for c in couplings) / count**2
    return Upper(mean, mean + float(stats.norm.isf(risk)) * math.sqrt(variance), words)


def rounded_blocks(
    cost: Cost, plan: Plan, xs: Samples, *, risk: float, progress: Callable[[float], None], seed: int = 0
) -> tuple[Upper, Upper]:
    """Couplings of blocks of any number of samples: the plan's, rounded to the data, and the same improved.

    Generated samples are replaced by the rows of data that are matched to them; then, for more than two marginals, one
    after the other is matched anew to the rest. Both are couplings of the blocks, whatever the plan is.
    """
    rows = min(map(len, xs))
    size = min(_BLOCK, max(2, rows // _FEW))
    count = min(rows // size, _MOST_ROUNDED_BLOCKS)
    rounded, improved = [], []
    for k in range(count):
        tuples = rounded_to(plan.sample(size, seed + k), tuple(x[k * size : (k + 1) * size] for x in xs))
        rounded.append(_mean_cost(cost, tuples))
        better = matched(cost, tuples, assign=by_pot) if len(xs) > 2 else tuples
        improved.append(min(rounded[-1], _mean_cost(cost, better)))
        progress((k + 1) / count)
    words = f"couplings of {blocks(count, size)}, from the plan"
    return _student(rounded, risk, words), _student(improved, risk, words)


def rounded_to(generated: Samples, data: Samples) -> Samples:
    """For each generated tuple the rows of data that are matched to its parts, each row once."""
    pairs = zip(generated, data, strict=True)
    return tuple(x[by_pot(cost_matrix(squared_euclidean, g.to(x), x))] for g, x in pairs)


def _sizes(xs: Samples) -> tuple[int, int]:
    """Rows of a block of the smaller data set, and how many blocks: larger and fewer ones in high dimension."""
    rows = min(map(len, xs))
    low = max(x[0].numel() for x in xs) <= _LOW_DIM
    size = _BLOCK if low else _LARGE_BLOCK
    size = size if rows >= _FEW * size else min(rows, _LARGE_BLOCK)
    return size, rows // size if low else min(rows // size, _MOST_LARGE_BLOCKS)


def _student(values: Sequence[float], risk: float, words: str) -> Upper:
    """mean + t s / √K."""
    mean = math.fsum(values) / len(values)
    deviation = float(np.std(values, ddof=1))
    return Upper(mean, mean + float(stats.t.isf(risk, len(values) - 1)) * deviation / math.sqrt(len(values)), words)


@torch.no_grad()
def _mean_cost(cost: Cost, xs: Samples) -> float:
    values: Tensor = cost(*xs)
    return float(values.double().mean())


def blocks(count: int, *sizes: int) -> str:
    """In words: how many, of how many rows."""
    rows = f"{sizes[0]} rows" if len(set(sizes)) == 1 else f"{' and '.join(map(str, sizes))} rows"
    return f"{count} blocks of {rows}" if count > 1 else rows
