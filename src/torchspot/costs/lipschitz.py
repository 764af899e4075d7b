"""What is known in advance about how steep a cost is."""

__all__ = ["known_lipschitz"]

import math

from torchspot.costs.multimarginal import SumOverPairs
from torchspot.types import Cost, Shape


def known_lipschitz(cost: Cost, shape: Shape, marginals: int) -> float | None:
    """L such that the cost is L-Lipschitz in each of its points; None where the cost does not say.

    A cost of the user's own says so by a method `lipschitz(dim)`, or `lipschitz_on(shape)` where the shape of a point
    matters. A sum over pairs is steeper by m − 1.
    """
    if isinstance(cost, SumOverPairs):
        pair = known_lipschitz(cost.pair, shape, 2)
        return None if pair is None else (marginals - 1) * pair
    if (on_shape := getattr(cost, "lipschitz_on", None)) is not None:
        return float(on_shape(shape))
    says = getattr(cost, "lipschitz", None)
    return None if says is None else float(says(math.prod(shape)))
