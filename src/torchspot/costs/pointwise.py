"""Costs of a pair of points."""

__all__ = ["Cosine", "PNorm", "SquaredEuclidean", "check_pair", "cosine", "euclidean", "p_norm", "squared_euclidean"]

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from torchspot.errors import InvalidArgument
from torchspot.types import Values

Points = Float[Tensor, "batch dim"]


@dataclass(frozen=True)
class PNorm:
    """c(x, y) = ‖x − y‖_p."""

    p: float = 2.0
    metric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.p >= 1:
            raise InvalidArgument(f"p_norm(p) needs p >= 1, and p = {self.p} is no norm. Use p_norm(1) or larger.")

    def __call__(self, *xs: Float[Tensor, "batch *shape"]) -> Values:
        x, y = check_pair(self, xs)
        return torch.linalg.vector_norm((x - y).flatten(1), ord=self.p, dim=1)

    def pairwise(self, x: Points, y: Points) -> Float[Tensor, "batch rows"]:
        """c(x_i, y_j) for all i and j."""
        return _squared_distances(x, y).sqrt() if self.p == 2 else torch.cdist(x, y, p=self.p)

    def lipschitz(self, dim: int) -> float:
        """Against the Euclidean metric: 1 for p ≥ 2, dim^(1/p − 1/2) below."""
        return 1.0 if self.p >= 2 else dim ** (1 / self.p - 1 / 2)

    def __str__(self) -> str:
        return "euclidean" if self.p == 2 else f"p_norm({self.p:g})"


@dataclass(frozen=True)
class SquaredEuclidean:
    """c(x, y) = ‖x − y‖². Its gradient grows with the distance, so its Lipschitz constant is estimated."""

    def __call__(self, *xs: Float[Tensor, "batch *shape"]) -> Values:
        x, y = check_pair(self, xs)
        return (x - y).flatten(1).square().sum(1)

    def pairwise(self, x: Points, y: Points) -> Float[Tensor, "batch rows"]:
        """c(x_i, y_j) for all i and j."""
        return _squared_distances(x, y)

    def embedding(self, x: Float[Tensor, "batch *shape"]) -> Points:
        """c(x, y) = ‖embedding(x) − embedding(y)‖²."""
        return x.flatten(1)

    def __str__(self) -> str:
        return "squared_euclidean"


@dataclass(frozen=True)
class Cosine:
    """c(x, y) = 1 − ⟨x, y⟩ / (‖x‖ ‖y‖). Its gradient has no bound near 0, so its Lipschitz constant is estimated."""

    def __call__(self, *xs: Float[Tensor, "batch *shape"]) -> Values:
        x, y = check_pair(self, xs)
        return 1 - torch.cosine_similarity(x.flatten(1), y.flatten(1), dim=1)

    def embedding(self, x: Float[Tensor, "batch *shape"]) -> Points:
        """c(x, y) = ‖embedding(x) − embedding(y)‖²: the point on the sphere of radius 1/√2."""
        return torch.nn.functional.normalize(x.flatten(1), dim=1) / math.sqrt(2)

    def __str__(self) -> str:
        return "cosine"


def p_norm(p: float) -> PNorm:
    """The p-norm of x − y, for p ≥ 1 (`math.inf` included)."""
    return PNorm(float(p))


euclidean = PNorm(2.0)
"""‖x − y‖, the cost of the 1-Wasserstein distance."""

squared_euclidean = SquaredEuclidean()
"""‖x − y‖², the cost of the squared 2-Wasserstein distance."""

cosine = Cosine()
"""1 − cosine of the angle between x and y."""


def check_pair(cost: object, xs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """The two batches, or an error that says what this cost takes."""
    if len(xs) != 2:
        raise InvalidArgument(
            f"the cost {cost} takes two marginals and got {len(xs)}. "
            f"For more, lift it: costs.sum_over_pairs(costs.{cost})."
        )
    x, y = xs
    if x.shape[1:] != y.shape[1:]:
        raise InvalidArgument(
            f"the cost {cost} compares points of equal shape, and the marginals have shapes "
            f"{tuple(x.shape[1:])} and {tuple(y.shape[1:])}. Bring the data to one dimension, "
            "or pass a cost of your own: cost=lambda x, y: …"
        )
    return x, y


def _squared_distances(x: Points, y: Points) -> Float[Tensor, "batch rows"]:
    """‖x_i − y_j‖² by one matrix product, from a common centre so that no digits are lost to a far origin."""
    centre = y.mean(0)
    x, y = x - centre, y - centre
    squares = x.square().sum(1)[:, None] + y.square().sum(1)
    return torch.addmm(squares, x, y.mT, alpha=-2).clamp_(min=0)
