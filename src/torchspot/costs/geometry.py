"""What is known in advance about the geometry of a cost: whether it is a metric, or a squared distance somewhere."""

__all__ = ["is_metric", "squared_embedding"]

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from torchspot.types import Cost


def is_metric(cost: Cost) -> bool:
    """Whether c(x, x) = 0, c(x, y) = c(y, x) and c(x, z) ≤ c(x, y) + c(y, z) for all points.

    A cost of the user's own says so by an attribute `metric = True`.
    """
    return bool(getattr(cost, "metric", False))


def squared_embedding(cost: Cost) -> Callable[[Tensor], Float[Tensor, "batch dim"]] | None:
    """e such that c(x, y) = ‖e(x) − e(y)‖² for all points; None where the cost does not say.

    A cost of the user's own says so by a method `embedding(x)`.
    """
    return getattr(cost, "embedding", None)
