"""Exact optimal transport between small samples, to compare with and to measure by."""

__all__ = ["emd", "matched"]

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from torchspot.errors import TorchspotError
from torchspot.types import Cost, Samples

Matrix = Float[np.ndarray, "rows columns"]


def matched(cost: Cost, xs: Samples, *, sweeps: int = 2) -> Samples:
    """The samples (of equal size) in an order in which Σ_k c(x_1k, …, x_mk) is least.

    Exact for two marginals. For more the problem is hard: marginal after marginal is matched to the others as they
    stand, a few times over.
    """
    made = list(xs)
    for _ in range(1 if len(made) == 2 else sweeps):
        for place in range(1, len(made)):
            made[place] = made[place][_matching(cost, made, place)]
    return tuple(made)


def emd(cost: Cost, x: Float[Tensor, "batch *shape"], y: Float[Tensor, "rows *shape"]) -> float:
    """The optimal cost between two empirical laws, by POT's network simplex."""
    try:
        import ot
    except ImportError as error:
        raise TorchspotError("exact.emd needs POT. Install it with: pip install 'torchspot[exact]'") from error
    return float(ot.emd2([], [], _matrix(cost, [x, y], 1), numItermax=10_000_000))


def _matching(cost: Cost, xs: Sequence[Tensor], place: int) -> Int[Tensor, " batch"]:
    """The best permutation of one marginal, the others as they are."""
    _, columns = linear_sum_assignment(_matrix(cost, xs, place))
    return torch.as_tensor(columns, device=xs[place].device)


@torch.no_grad()
def _matrix(cost: Cost, xs: Sequence[Tensor], place: int) -> Matrix:
    """c(x_1i, …, x_mi) for all i, with entry j of one marginal in its place for all j, row by row."""
    moving, fixed = xs[place], [x for k, x in enumerate(xs) if k != place]
    rows = []
    for tuple_ in zip(*fixed, strict=True):
        repeated = [x.expand(len(moving), *x.shape) for x in tuple_]
        rows.append(cost(*repeated[:place], moving, *repeated[place:]))
    return torch.stack(rows).double().cpu().numpy()
