"""Critics: one 1-Lipschitz function of each marginal, which tells generated samples from data."""

__all__ = ["Critics", "mlp_critics"]

from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import nn

from torchspot.errors import InvalidArgument
from torchspot.networks.generators import Shapes
from torchspot.networks.lipschitz import Control, Layer, Orthogonal, operator_norm
from torchspot.networks.mlp import filled_up
from torchspot.types import Samples, Values


class Critics(nn.Module):
    """λ_i: a fully connected network under a Lipschitz control for each marginal, on standardised samples.

    The networks are computed together, layer by layer. The last layer has no bias: a constant added to λ changes
    nothing, and Adam would turn the rounding errors of its gradient into full steps.
    """

    def __init__(self, shapes: Shapes, *, width: int, depth: int, control: Control, rng: torch.Generator) -> None:
        super().__init__()
        if width % 2 and isinstance(control, Orthogonal):
            raise InvalidArgument(
                f"orthogonal critics need an even width, and width={width} is odd. Use width={width + 1}."
            )
        self.control, self._size = control, max(shapes.sizes)
        m = len(shapes.sizes)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise([shapes.sizes, *[[width] * m] * depth, [1] * m]):
            layers += [control.layer(inputs, outputs[0], rng), control.activation(inputs, outputs[0], rng)]
        self.networks = nn.Sequential(*layers[:-1])
        self._layers()[-1].bias = None

    def forward(self, us: Samples) -> tuple[Values, ...]:
        rows = max(map(len, us))
        together = torch.stack([filled_up(u.flatten(1), rows, self._size) for u in us])  # (marginals, rows, size)
        values = self.networks(together.mT).squeeze(1)
        if all(len(u) == rows for u in us):
            return values.unbind()
        return tuple(value[: len(u)] for value, u in zip(values, us, strict=True))

    def after_step(self) -> None:
        """What the Lipschitz control does after each step of these weights."""
        self.control.after_step(self._layers())

    def operator_norms(self) -> list[float]:
        """The measured largest singular value of every layer's effective weights, marginal by marginal."""
        return torch.stack([operator_norm(layer.effective_weight()) for layer in self._layers()], 1).flatten().tolist()

    def _layers(self) -> list[Layer]:
        return [layer for layer in self.networks if isinstance(layer, Layer)]


@dataclass(frozen=True)
class mlp_critics:  # noqa: N801
    """Builder of fully connected critics."""

    width: int = 64
    depth: int = 2
    control: Control = field(default_factory=Orthogonal)

    def __call__(self, shapes: Shapes, rng: torch.Generator) -> Critics:
        return Critics(shapes, width=self.width, depth=self.depth, control=self.control, rng=rng)
