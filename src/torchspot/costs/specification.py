"""Library costs as plain data and back, for files that hold no code."""

__all__ = ["from_spec", "to_spec"]

from typing import Any

from torchspot.costs.images import Contour, SignedContour, contour, signed_contour
from torchspot.costs.multimarginal import Barycentric, SumOverPairs, barycentric
from torchspot.costs.pointwise import Cosine, PNorm, SquaredEuclidean
from torchspot.types import Cost


def to_spec(cost: Cost) -> dict[str, Any] | None:
    """Name and arguments of a library cost; None for a cost of the user's own."""
    match cost:
        case PNorm(p=p):
            return {"name": "p_norm", "p": p if p != float("inf") else "inf"}
        case SquaredEuclidean():
            return {"name": "squared_euclidean"}
        case Cosine():
            return {"name": "cosine"}
        case Contour() | SignedContour():
            return {"name": str(cost)}
        case Barycentric(weights=weights):
            return {"name": "barycentric", "weights": None if weights is None else list(weights)}
        case SumOverPairs(pair=pair) if not isinstance(pair, SumOverPairs):
            inner = to_spec(pair)
            return None if inner is None else {"name": "sum_over_pairs", "pair": inner}
    return None


def from_spec(spec: dict[str, Any]) -> Cost:
    """The cost that `to_spec` described; raises KeyError, TypeError or ValueError for anything else."""
    match spec:
        case {"name": "p_norm", "p": p}:
            return PNorm(float(p))
        case {"name": "squared_euclidean"}:
            return SquaredEuclidean()
        case {"name": "cosine"}:
            return Cosine()
        case {"name": "contour"}:
            return contour
        case {"name": "signed_contour"}:
            return signed_contour
        case {"name": "barycentric", "weights": weights}:
            return Barycentric(None if weights is None else barycentric(weights).weights)
        case {"name": "sum_over_pairs", "pair": {"name": name} as pair} if name != "sum_over_pairs":
            return SumOverPairs(from_spec(pair))
    raise KeyError(f"no library cost is called {spec!r}")
