"""Generators of pairs whose second end is a translation of the first."""

__all__ = ["Residual", "TranslatedGenerator", "translated"]

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchspot.networks.convolutional import are_pictures
from torchspot.networks.generators import Shapes
from torchspot.networks.judges import scaled_weights
from torchspot.networks.mlp import leaky
from torchspot.types import Samples, Shape

_STEEP = 1.5


class TranslatedGenerator(nn.Module):
    """G(z) = (x, T(x)), x = G_X(z): T also translates real samples of the first marginal.

    Of vectors T(x) = M x + h(x), of pictures T(x) = tanh(1.5 x + h(x)), with values within ±1; h starts at 0.
    """

    matrix: Tensor | None

    def __init__(self, first: nn.Module, change: "Residual", matrix: Float[Tensor, "dim dim"] | None = None) -> None:
        super().__init__()
        self.first, self.change = first, change
        self.register_buffer("matrix", matrix)

    def forward(self, z: Float[Tensor, "batch latent"]) -> Samples:
        (x,) = self.first(z)
        return x, self.translate(x)

    def translate(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """T of standardised samples."""
        h = self.change(x)
        if x.ndim > 2:
            return (_STEEP * x + h).tanh()
        return h + (x if self.matrix is None else x @ self.matrix.mT)


class Residual(nn.Sequential):
    """h: two hidden layers, convolutions of pictures, and a last one that starts at 0."""

    def __init__(self, shape: Shape, width: int, rng: torch.Generator) -> None:
        layer = _convolution if are_pictures([shape]) else nn.Linear
        hidden = (part for a, b in pairwise((shape[0], width, width)) for part in (layer(a, b), leaky()))
        super().__init__(*hidden, layer(width, shape[0]))
        self.width = width
        scaled_weights(self.modules(), rng)
        for parameter in self[-1].parameters():
            nn.init.zeros_(parameter)


@dataclass(frozen=True)
class translated:  # noqa: N801
    """Builder of a generator of one marginal followed by a translation to the other; both of one shape."""

    first: Callable[[Shapes, torch.Generator], nn.Module]
    width: int = 64
    start: Float[Tensor, "dim dim"] | None = None
    """M, of vectors; None: the identity."""

    @torch.random.fork_rng(devices=[])
    def __call__(self, shapes: Shapes, rng: torch.Generator) -> TranslatedGenerator:
        shape = shapes.marginals[0]
        first = self.first(Shapes(shapes.latent, (shape,)), rng)
        start = None if self.start is None else self.start.float()
        return TranslatedGenerator(first, Residual(shape, self.width, rng), start)


def _convolution(inputs: int, outputs: int) -> nn.Module:
    return nn.Conv2d(inputs, outputs, 3, padding=1)
