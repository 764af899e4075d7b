"""Exact optimal transport between small samples, to compare with and to measure by."""

__all__ = ["emd", "matching"]

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from torchspot.errors import TorchspotError
from torchspot.types import Cost

Matrix = Float[np.ndarray, "rows columns"]


def matching(cost: Cost, x: Float[Tensor, "batch *shape"], y: Float[Tensor, "batch *shape"]) -> Int[Tensor, " batch"]:
    """The permutation σ that minimises Σ c(x_k, y_σ(k)), for samples of equal size."""
    _, columns = linear_sum_assignment(_matrix(cost, x, y))
    return torch.as_tensor(columns, device=y.device)


def emd(cost: Cost, x: Float[Tensor, "batch *shape"], y: Float[Tensor, "rows *shape"]) -> float:
    """The optimal cost between two empirical laws, by POT's network simplex."""
    try:
        import ot
    except ImportError as error:
        raise TorchspotError("exact.emd needs POT. Install it with: pip install 'torchspot[exact]'") from error
    return float(ot.emd2([], [], _matrix(cost, x, y), numItermax=10_000_000))


@torch.no_grad()
def _matrix(cost: Cost, x: Tensor, y: Tensor) -> Matrix:
    """c(x_i, y_j) for all i, j, row by row."""
    rows = [cost(row.expand(len(y), *row.shape), y) for row in x]
    return torch.stack(rows).double().cpu().numpy()
