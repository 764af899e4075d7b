"""Costs of more than two points."""

__all__ = ["Barycentric", "Pairs", "SumOverPairs", "barycenter_weights", "barycentric", "pairs_of", "sum_over_pairs"]

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from torchspot.costs.pointwise import SquaredEuclidean, squared_euclidean
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


@dataclass(frozen=True)
class Barycentric:
    """c(x_1, …, x_m) = Σ_i w_i ‖x_i − x̄‖², x̄ = Σ_i w_i x_i: the squared distance to the mean."""

    weights: tuple[float, ...] | None = None
    """w_i, which sum to 1; None: equal for any number of marginals."""

    def __call__(self, *xs: Float[Tensor, "batch *shape"]) -> Values:
        shares = self.shares(len(xs))
        if len({tuple(x.shape) for x in xs}) != 1:
            raise InvalidArgument(
                f"the cost {self} compares points of equal shape, and the marginals have shapes "
                f"{', '.join(str(tuple(x.shape[1:])) for x in xs)}. Bring the data to one dimension, "
                "or pass a cost of your own: cost=lambda x, y, z: …"
            )
        mean = sum((w * x for w, x in zip(shares[1:], xs[1:], strict=True)), start=shares[0] * xs[0])
        apart = torch.stack([w * (x - mean).flatten(1).square().sum(1) for w, x in zip(shares, xs, strict=True)])
        return apart.sum(0)

    def shares(self, m: int) -> tuple[float, ...]:
        """w_i for so many marginals."""
        if self.weights is None:
            return (1 / m,) * m
        if len(self.weights) != m:
            raise InvalidArgument(f"the cost {self} has {len(self.weights)} weights and got {m} marginals.")
        return self.weights

    def __str__(self) -> str:
        return "barycentric" if self.weights is None else f"barycentric({', '.join(f'{w:g}' for w in self.weights)})"


class Pairs(NamedTuple):
    """A cost that is scale · Σ_{i<j} w_i w_j c(x_i, x_j), Σ w_i = 1."""

    pair: Cost
    weights: tuple[float, ...]
    scale: float


def sum_over_pairs(cost: Cost) -> SumOverPairs:
    """Lifts a cost of two points to any number: the sum over all pairs.

    >>> import torch
    >>> from torchspot import costs
    >>> x, y, z = torch.tensor([[0.0]]), torch.tensor([[1.0]]), torch.tensor([[3.0]])
    >>> costs.sum_over_pairs(costs.euclidean)(x, y, z)
    tensor([6.])
    """
    return SumOverPairs(cost)


def barycentric(weights: Sequence[float] | None = None) -> Barycentric:
    """Σ_i w_i ‖x_i − x̄‖², whose optimal plan has the Wasserstein barycenter as the law of x̄ = Σ_i w_i x_i.

    Args:
        weights: one number above 0 for each marginal, divided by their sum; None: all equal.

    >>> import torch
    >>> x, y, z = torch.tensor([[0.0]]), torch.tensor([[1.0]]), torch.tensor([[3.0]])
    >>> barycentric([2, 1, 1])(x, y, z)
    tensor([1.5000])
    """
    if weights is None:
        return Barycentric()
    given = [float(w) for w in weights]
    if len(given) < 2 or not all(math.isfinite(w) and w > 0 for w in given):
        raise InvalidArgument(
            f"barycentric(weights) takes one number above 0 for each of two or more marginals, and got {weights!r}. "
            "A marginal that is to count nothing is best left out."
        )
    total = math.fsum(given)
    return Barycentric(tuple(w / total for w in given))


def pairs_of(cost: Cost, m: int) -> Pairs | None:
    """The cost of m points as one of pairs, where it is known to be one."""
    if isinstance(cost, SumOverPairs):
        return Pairs(cost.pair, (1 / m,) * m, float(m * m))
    if isinstance(cost, Barycentric):
        return Pairs(squared_euclidean, cost.shares(m), 1.0)
    return Pairs(cost, (0.5, 0.5), 4.0) if m == 2 else None


def barycenter_weights(cost: Cost, m: int) -> tuple[float, ...] | None:
    """w such that Σ_i w_i x_i of an optimal plan is the Wasserstein barycenter; None for a cost that is not squared."""
    pairs = pairs_of(cost, m)
    return pairs.weights if pairs is not None and isinstance(pairs.pair, SquaredEuclidean) else None
