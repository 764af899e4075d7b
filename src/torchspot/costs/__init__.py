"""Transport costs: functions of one batch of each marginal that give one number a row."""

__all__ = [
    "barycenter_weights",
    "barycentric",
    "contour",
    "cosine",
    "euclidean",
    "from_spec",
    "is_metric",
    "known_lipschitz",
    "p_norm",
    "pairs_of",
    "signed_contour",
    "squared_embedding",
    "squared_euclidean",
    "sum_over_pairs",
    "to_spec",
]

from torchspot.costs.geometry import is_metric, squared_embedding
from torchspot.costs.images import contour, signed_contour
from torchspot.costs.lipschitz import known_lipschitz
from torchspot.costs.multimarginal import barycenter_weights, barycentric, pairs_of, sum_over_pairs
from torchspot.costs.pointwise import cosine, euclidean, p_norm, squared_euclidean
from torchspot.costs.specification import from_spec, to_spec
