"""The Wasserstein barycenter of the marginals, from a plan of all of them."""

__all__ = ["barycenter"]

import math
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from torchspot import costs
from torchspot.errors import InvalidArgument
from torchspot.types import Plan

_CLOSE = 1e-6


def barycenter(
    plan: Plan, n: int = 10_000, *, weights: Sequence[float] | None = None, seed: int | None = None
) -> Float[Tensor, "batch *shape"]:
    """n samples of the barycenter argmin_ν Σ_i w_i W2²(ν, μ_i): the means Σ_i w_i x_i of the plan's tuples.

    That holds for the optimal plan of the squared distances with these weights and no other, so weights must be those
    of the cost the plan was fitted with. (Between two marginals the plan does not depend on them: a plan of
    `costs.squared_euclidean` takes any, which gives McCann's interpolation.)

    Args:
        plan: of `costs.sum_over_pairs(costs.squared_euclidean)`, `costs.barycentric(weights)`, or between two
            marginals `costs.squared_euclidean`.
        n: how many samples.
        weights: None takes those of the cost.
        seed: for the same samples again.

    Reference: "Barycenters in the Wasserstein space", M. Agueh and G. Carlier, 2011.
    """
    if "epsilon" in getattr(plan, "facts", {}):
        raise InvalidArgument(
            "this plan is entropic, and the means of its tuples are spread more widely than the barycenter. "
            "Fit SPOT(cost=costs.barycentric(…)), without epsilon."
        )
    xs = plan.sample(n, seed)
    fitted = costs.barycenter_weights(plan.cost, len(xs))
    if fitted is None:
        raise InvalidArgument(
            f"a barycenter comes from squared distances, and this plan was fitted with the cost {plan.cost}. "
            f"Fit one with SPOT(cost=costs.barycentric({_said(weights, len(xs))}))."
        )
    shares = fitted if weights is None else _normalised(weights, len(xs))
    if plan.cost != costs.squared_euclidean and max(abs(a - b) for a, b in zip(shares, fitted, strict=True)) > _CLOSE:
        raise InvalidArgument(
            f"this plan gives the barycenter with weights {_said(fitted, len(xs))}, not {_said(shares, len(xs))}. "
            f"Fit one that does: SPOT(cost=costs.barycentric({_said(weights, len(xs))})).fit(…)."
        )
    return sum((w * x for w, x in zip(shares[1:], xs[1:], strict=True)), start=shares[0] * xs[0])


def _normalised(weights: Sequence[float], m: int) -> tuple[float, ...]:
    given = [float(w) for w in weights]
    if len(given) != m or not all(math.isfinite(w) and w >= 0 for w in given) or not sum(given) > 0:
        raise InvalidArgument(f"the plan has {m} marginals: give one weight of at least 0 for each, not {weights!r}.")
    return tuple(w / math.fsum(given) for w in given)


def _said(weights: Sequence[float] | None, m: int) -> str:
    return f"[{', '.join(f'{float(w):.4g}' for w in ([1 / m] * m if weights is None else weights))}]"
