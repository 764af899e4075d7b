"""Bounds of the transport between two samples, under any cost at all."""

__all__ = ["SampleBounds", "exact_between", "sample_bounds"]

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from torchspot.evaluation.blocks import Upper, blocks
from torchspot.exact import c_transform, couple, emd
from torchspot.types import Cost

_MOST, _BLOCK = 16_384, 2048


@dataclass(frozen=True)
class SampleBounds:
    """Of the optimal cost between two empirical laws."""

    lower: float
    upper: Upper
    words: str
    rows: int
    """Of each sample, between which the problem is."""


def exact_between(
    cost: Cost, x: Tensor, y: Tensor, shares: tuple[Float[np.ndarray, " batch"], Float[np.ndarray, " rows"]]
) -> SampleBounds:
    """Exact transport between all rows, by their shares: both bounds are the value itself."""
    value = emd(cost, x, y, shares=shares)
    words = f"exact transport between all {len(x)} and {len(y)} rows"
    return SampleBounds(value, Upper(value, value, words), "the same", min(len(x), len(y)))


def sample_bounds(
    cost: Cost, x: Float[Tensor, "batch *shape"], y: Float[Tensor, "rows *shape"], *, risk: float
) -> SampleBounds:
    """Between the first rows of each, as many as blocks of equal size cover (at most 16 384).

    Above: the blocks coupled exactly, one by one, are a coupling of all rows; no chance is involved. Below:
    f(x) = min_j c(x, y_j) − g_j over one block with g from its exact coupling, and its partner
    h(y) = min_i c(x_i, y) − f(x_i) over *all* rows, averaged over as many y as there are in a block.
    """
    rows = min(len(x), len(y), _MOST)
    count = max(1, rows // _BLOCK)
    size = rows // count
    rows = size * count
    x, y = x[:rows], y[:rows]
    pairs = zip(torch.split(x, size), torch.split(y, size), strict=True)
    couplings = [couple(cost, a, b) for a, b in pairs]
    mean = math.fsum(c.cost for c in couplings) / count
    upper = Upper(mean, mean, f"exact transport between {blocks(count, size)}")
    words = f"potentials on {rows} rows of each"
    if count == 1:
        return SampleBounds(mean, upper, words, rows)
    f = c_transform(cost, x, y[:size], couplings[0].g)
    h = c_transform(_turned(cost), y[-size:], x, f)
    noise = float(stats.t.isf(risk, size - 1)) * float(h.std()) * math.sqrt((1 - size / rows) / size)
    return SampleBounds(float(f.mean() + h.mean()) - noise, upper, words, rows)


def _turned(cost: Cost) -> Cost:
    return lambda *xs: cost(*xs[::-1])
