"""Upper bounds of transport: what it costs to couple blocks of the data, on average no less than to couple the laws."""

__all__ = ["Upper", "coupled_blocks", "rounded_blocks", "rounded_to"]

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
    """Exact transport between disjoint blocks of two samples.

    With five blocks or more the bound is Student's; with fewer it comes from the potentials f and g of each:
    mean + z √((Var f + Var g) / n).
    """
    rows = min(map(len, xs))
    size, most = _sizes(xs, rows)
    count = min(rows // size, most)
    couplings = []
    for k in range(count):
        couplings.append(couple(cost, *(x[k * size : (k + 1) * size] for x in xs)))
        progress((k + 1) / count)
    words = f"exact transport between {_blocks(count, size)}"
    if count >= _FEW:
        return _student([c.cost for c in couplings], risk, words)
    mean = math.fsum(c.cost for c in couplings) / count
    variance = math.fsum(float(c.f.var() + c.g.var()) for c in couplings) / count
    return Upper(mean, mean + float(stats.norm.isf(risk)) * math.sqrt(variance / (count * size)), words)


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
    words = f"couplings of {_blocks(count, size)}, from the plan"
    return _student(rounded, risk, words), _student(improved, risk, words)


def rounded_to(generated: Samples, data: Samples) -> Samples:
    """For each generated tuple the rows of data that are matched to its parts, each row once."""
    pairs = zip(generated, data, strict=True)
    return tuple(x[by_pot(cost_matrix(squared_euclidean, g.to(x), x))] for g, x in pairs)


def _sizes(xs: Samples, rows: int) -> tuple[int, int]:
    """Rows of a block, and the most blocks: larger and fewer in high dimension, where small blocks cost too much."""
    low = max(x[0].numel() for x in xs) <= _LOW_DIM
    size = _BLOCK if low else _LARGE_BLOCK
    most = np.iinfo(np.int64).max if low else _MOST_LARGE_BLOCKS
    return (size if rows >= _FEW * size else min(rows, _LARGE_BLOCK)), int(most)


def _student(values: Sequence[float], risk: float, words: str) -> Upper:
    """mean + t s / √K."""
    mean = math.fsum(values) / len(values)
    deviation = float(np.std(values, ddof=1))
    return Upper(mean, mean + float(stats.t.isf(risk, len(values) - 1)) * deviation / math.sqrt(len(values)), words)


@torch.no_grad()
def _mean_cost(cost: Cost, xs: Samples) -> float:
    values: Tensor = cost(*xs)
    return float(values.double().mean())


def _blocks(count: int, size: int) -> str:
    return f"{count} blocks of {size} rows" if count > 1 else f"{size} rows"
