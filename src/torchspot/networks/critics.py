"""Critics: one 1-Lipschitz function of each marginal, which tells generated samples from data."""

__all__ = ["Critics", "CriticsInDataUnits", "mlp_critics"]

from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import nn

from torchspot.errors import InvalidArgument
from torchspot.networks.generators import Shapes, Units
from torchspot.networks.lipschitz import Control, GroupSort, Layer, Orthogonal, operator_norm
from torchspot.types import Samples, Values


class Critics(nn.Module):
    """λ_i: a fully connected network under a Lipschitz control for each marginal, on standardised samples."""

    def __init__(self, shapes: Shapes, *, width: int, depth: int, control: Control, rng: torch.Generator) -> None:
        super().__init__()
        if width % 2 and isinstance(control.activation(), GroupSort):
            raise InvalidArgument(f"GroupSort sorts units in pairs, and width={width} is odd. Use width={width + 1}.")
        self.networks = nn.ModuleList(_network(size, width, depth, control, rng) for size in shapes.sizes)

    def forward(self, us: Samples) -> tuple[Values, ...]:
        return tuple(network(u.flatten(1)).squeeze(-1) for network, u in zip(self.networks, us, strict=True))

    def after_step(self) -> None:
        """What the Lipschitz control does after each step of these weights."""
        for layer in self._layers():
            layer.after_step()

    def operator_norms(self) -> list[float]:
        """The measured largest singular value of every layer's effective weight."""
        return [operator_norm(layer.effective_weight()) for layer in self._layers()]

    def _layers(self) -> list[Layer]:
        return [layer for layer in self.modules() if isinstance(layer, Layer)]


@dataclass(frozen=True)
class mlp_critics:  # noqa: N801
    """Builder of fully connected critics."""

    width: int = 64
    depth: int = 2
    control: Control = field(default_factory=Orthogonal)

    def __call__(self, shapes: Shapes, rng: torch.Generator) -> Critics:
        return Critics(shapes, width=self.width, depth=self.depth, control=self.control, rng=rng)


class CriticsInDataUnits(nn.Module):
    """Critics of samples in data units: s λ_i((x_i − mean_i) / s), 1-Lipschitz in data units if λ_i is."""

    def __init__(self, critics: nn.Module, units: Units) -> None:
        super().__init__()
        self.critics, self.units = critics, units

    def forward(self, xs: Samples) -> tuple[Values, ...]:
        return tuple(self.units.scale * value for value in self.critics(self.units.from_data(xs)))

    def after_step(self) -> None:
        """Passed on to the critics where they have something to do after a step."""
        after_step = getattr(self.critics, "after_step", None)
        if after_step is not None:
            after_step()


def _network(size: int, width: int, depth: int, control: Control, rng: torch.Generator) -> nn.Sequential:
    sizes = [size, *[width] * depth]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [control.layer(inputs, outputs, rng), control.activation()]
    return nn.Sequential(*layers, control.layer(sizes[-1], 1, rng))
