"""Costs of more than two points."""

__all__ = ["SumOverPairs", "sum_over_pairs"]

from dataclasses import dataclass
from itertools import combinations

from jaxtyping import Float
from torch import Tensor

from torchspot.errors import InvalidArgument
from torchspot.types import Cost, Values


@dataclass(frozen=True)
class SumOverPairs:
    """c(x_1, …, x_m) = Σ_{i<j} c(x_i, x_j)."""

    pair: Cost

    def __call__(self, *xs: Float[Tensor, "batch *shape"]) -> Values:
        if len(xs) < 2:
            raise InvalidArgument(f"sum_over_pairs needs at least two marginals and got {len(xs)}.")
        first, *others = (self.pair(x, y) for x, y in combinations(xs, 2))
        return sum(others, start=first)

    def __str__(self) -> str:
        return f"sum_over_pairs({self.pair})"


def sum_over_pairs(cost: Cost) -> SumOverPairs:
    """Lifts a cost of two points to any number: the sum over all pairs.

    >>> import torch
    >>> from torchspot import costs
    >>> x, y, z = torch.tensor([[0.0]]), torch.tensor([[1.0]]), torch.tensor([[3.0]])
    >>> costs.sum_over_pairs(costs.euclidean)(x, y, z)
    tensor([6.])
    """
    return SumOverPairs(cost)
