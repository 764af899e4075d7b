"""Generators that start from real samples: one marginal is the sample itself, the others its partners."""

__all__ = ["AnchoredGenerator", "anchored"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchspot.networks.generators import Shapes
from torchspot.types import Samples


class AnchoredGenerator(nn.Module):
    """G(z), z = (u_a, …, u_b, noise): row k starts from one anchor a, G_a = u_a, and a network of (u_a, noise) gives
    the other marginals.

    Of several anchors the rows take turns, so that each starts its share of the joint samples.
    """

    def __init__(self, networks: Sequence[nn.Module], shapes: Shapes, at: tuple[int, ...]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.shapes, self.at = shapes, at
        self._sizes = [shapes.sizes[a] for a in at]

    def forward(self, z: Float[Tensor, "batch latent"]) -> Samples:
        turns = len(self.at)
        filled = torch.cat((z, z[:1].expand(-len(z) % turns, -1))).view(-1, turns, z.shape[1])
        parts = [self.started(j, *self._parted(rows, j)) for j, rows in enumerate(filled.unbind(1))]
        return tuple(torch.stack(xs, dim=1).flatten(0, 1)[: len(z)] for xs in zip(*parts, strict=True))

    def started(self, j: int, u: Float[Tensor, "batch size"], noise: Float[Tensor, "batch noise"]) -> Samples:
        """Joint samples that start from anchor number j, at these standardised samples."""
        made = list(self.networks[j](torch.cat((u, noise), dim=1)))
        made.insert(self.at[j], u.reshape(-1, *self.shapes.marginals[self.at[j]]))
        return tuple(made)

    def made(self, xs: Samples) -> Samples:
        """Of joint samples, those of each marginal that are not data, unless all of them are."""
        turns = len(self.at)
        if turns == 1:
            return xs
        others = [[j for j in range(turns) if self.at[j] != k] for k in range(len(xs))]
        return tuple(torch.cat([x[j::turns] for j in rows]) for x, rows in zip(xs, others, strict=True))

    def _parted(self, z: Float[Tensor, "batch latent"], j: int) -> tuple[Tensor, Tensor]:
        start, total = sum(self._sizes[:j]), sum(self._sizes)
        return z[:, start : start + self._sizes[j]], z[:, total:]


@dataclass(frozen=True)
class anchored:  # noqa: N801
    """Builder of a generator that starts from real samples."""

    at: tuple[int, ...]
    networks: Callable[[int], Callable[[Shapes, torch.Generator], nn.Module]]
    """For each anchor, the builder of the network from (sample, noise) to the other marginals."""

    def __call__(self, shapes: Shapes, rng: torch.Generator) -> AnchoredGenerator:
        noise = shapes.latent - sum(shapes.sizes[a] for a in self.at)
        built = [self.networks(a)(shapes.beside(a, noise), rng) for a in self.at]
        return AnchoredGenerator(built, shapes, self.at)
