"""Costs of a pair of pictures: how far their outlines differ."""

__all__ = ["Contour", "SignedContour", "contour", "signed_contour"]

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from torchspot.errors import InvalidArgument
from torchspot.types import Shape, Values

Picture = Float[Tensor, "batch channels height width"]

_CHANNELS, _SMALLEST = 3, 3
_SOBEL = 8.0
"""√ of the largest |Ĉ₁|² + |Ĉ₂|² over all frequencies: how much both filters together stretch a picture."""


@dataclass(frozen=True)
class Contour:
    """c(x, y) = Σ_{i=1,2} Σ_{j=1..3} ‖ |C_i * x_j| − |C_i * y_j| ‖_F, section 5.3 as printed.

    C_1 and C_2 are the Sobel filters, j are the colours; a grey picture has three equal ones. Filters are applied
    where they fit inside the picture, so that its frame is no contour. It is 0 between pictures with equal outlines,
    whatever their colours, and so no metric.
    """

    def __call__(self, *xs: Picture) -> Values:
        x, y = _pair(self, xs)
        return torch.linalg.vector_norm(_outlines(x).abs() - _outlines(y).abs(), dim=(-2, -1)).sum((1, 2))

    def lipschitz_on(self, shape: Shape) -> float:
        """8√6 in a picture of three colours, 24√2 in a grey one, whose difference counts three times."""
        return _SOBEL * math.sqrt(2) * (_CHANNELS if shape[0] == 1 else math.sqrt(_CHANNELS))

    def strengths(self, x: Picture) -> Float[Tensor, "batch 6"]:
        """‖C_i * x_j‖_F for each filter and colour: c(x, y) is at least the sum of their differences."""
        return torch.linalg.vector_norm(_outlines(x), dim=(-2, -1)).flatten(1)

    def __str__(self) -> str:
        return "contour"


@dataclass(frozen=True)
class SignedContour:
    """c(x, y) = Σ_{i=1,2} ‖ C_i * Σ_j x_j − C_i * Σ_j y_j ‖_F, what the authors' scripts compute.

    Colours are summed before the filters, and edges keep their sign: a dark digit on a bright ground is far from a
    bright one on a dark ground. The scripts take one norm over a whole batch; here, as for any cost, each row has its
    own.
    """

    def __call__(self, *xs: Picture) -> Values:
        x, y = _pair(self, xs)
        return torch.linalg.vector_norm(_outlines(x).sum(2) - _outlines(y).sum(2), dim=(-2, -1)).sum(1)

    def lipschitz_on(self, shape: Shape) -> float:
        """As steep as `contour`: both put all weight of a change on one sum over colours."""
        return Contour().lipschitz_on(shape)

    def __str__(self) -> str:
        return "signed_contour"


contour = Contour()
"""The outline cost of section 5.3: pairs pictures that show the same shape in other colours."""

signed_contour = SignedContour()
"""Its variant in the authors' scripts."""


def _outlines(x: Picture) -> Float[Tensor, "batch 2 3 height width"]:
    """C_1 * x_j and C_2 * x_j where the filters fit: [1, 2, 1] along one axis, a difference along the other."""
    x = x.expand(-1, _CHANNELS, -1, -1)
    down = x[..., :-2, :] + 2 * x[..., 1:-1, :] + x[..., 2:, :]
    across = x[..., :-2] + 2 * x[..., 1:-1] + x[..., 2:]
    return torch.stack((down[..., 2:] - down[..., :-2], across[..., :-2, :] - across[..., 2:, :]), dim=1)


def _pair(cost: object, xs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Two batches of pictures of one size, or an error that says what this cost takes."""
    if len(xs) != 2:
        raise InvalidArgument(
            f"the cost {cost} takes two marginals and got {len(xs)}. "
            f"For more, lift it: costs.sum_over_pairs(costs.{cost})."
        )
    shapes = [tuple(x.shape[1:]) for x in xs]
    pictures = all(len(shape) == 3 and shape[0] in (1, _CHANNELS) and min(shape[1:]) >= _SMALLEST for shape in shapes)
    if not pictures or shapes[0][1:] != shapes[1][1:]:
        raise InvalidArgument(
            f"the cost {cost} compares pictures of shape (1 or 3, height, width), of one height and width, and the "
            f"marginals have shapes {shapes[0]} and {shapes[1]}. Put colours first and bring pictures to one size: "
            "--size 64 on the command line, data.PictureFolder(path, 64) in Python."
        )
    return xs[0], xs[1]
