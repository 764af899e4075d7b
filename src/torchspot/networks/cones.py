"""Lipschitz functions for any norm: the lowest of many cones."""

__all__ = ["Cones"]

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchspot.types import Values

Points = Float[Tensor, "batch dim"]

_ROUNDING = 0.1
_FAR = 60.0
"""Cones so many roundings above the lowest count nothing; cutting them off keeps float32 from slow, tiny numbers."""


class Cones(nn.Module):
    """u(x) = −τ log Σ_k exp(−(‖x − a_k‖_p + b_k) / τ): a rounded minimum of cones, 1-Lipschitz for the p-norm.

    Potentials of a metric cost are minima of cones with tips among the data; here tips a_k and heights b_k are learned.
    At the start the tips lie among the given points or up to three times as far out.
    """

    def __init__(self, points: Points, *, count: int, p: float, rng: torch.Generator) -> None:
        super().__init__()
        chosen = points[torch.randint(len(points), (count,), generator=rng)].float()
        tips = chosen * torch.exp(torch.rand(count, 1, generator=rng) * math.log(3))
        self.p = p
        self.tips = nn.Parameter(tips)
        self.heights = nn.Parameter(-tips.norm(p=p, dim=1))

    def forward(self, x: Points) -> Values:
        above = (torch.cdist(x, self.tips, p=self.p) + self.heights) / _ROUNDING
        lowest = above.detach().amin(1, keepdim=True)
        return -_ROUNDING * torch.logsumexp(-torch.minimum(above, lowest + _FAR), dim=1)
