"""Networks of which marginals share part: the same module objects, so that one step moves them for all."""

__all__ = ["TiedGenerator", "tied", "tied_critics"]

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchspot.errors import InvalidArgument
from torchspot.networks.convolutional import (
    PictureCritics,
    PictureHead,
    PictureTrunk,
    check_pictures,
    halving_critic,
    normal_weights,
)
from torchspot.networks.generators import Shapes
from torchspot.networks.lipschitz import Control, Free
from torchspot.types import Samples


class TiedGenerator(nn.Module):
    """G(z) of pictures of one size: the layers up to full size are the same for all marginals, the last are not.

    Reference: "Coupled Generative Adversarial Networks", M.-Y. Liu and O. Tuzel, 2016.
    """

    def __init__(self, shapes: Shapes, *, width: int, depth: int, rng: torch.Generator) -> None:
        super().__init__()
        _check_one_size(shapes)
        self.shapes, self.width, self.depth = shapes, width, depth
        self.trunk = PictureTrunk(shapes, width)
        self.heads = nn.ModuleList(PictureHead(width, shape[0], depth) for shape in shapes.marginals)
        normal_weights(self, rng)

    def forward(self, z: Float[Tensor, "batch latent"]) -> Samples:
        maps = self.trunk(z)
        return tuple(head(maps).tanh() for head in self.heads)


@dataclass(frozen=True)
class tied:  # noqa: N801
    """Builder of a generator of pictures whose marginals share all but the last layers."""

    width: int = 64
    depth: int = 2

    @torch.random.fork_rng(devices=[])
    def __call__(self, shapes: Shapes, rng: torch.Generator) -> TiedGenerator:
        return TiedGenerator(shapes, width=self.width, depth=self.depth, rng=rng)


@dataclass(frozen=True)
class tied_critics:  # noqa: N801
    """Builder of critics of pictures that share all but the first layer."""

    width: int = 128
    control: Control = field(default_factory=Free)

    @torch.random.fork_rng(devices=[])
    def __call__(self, shapes: Shapes, rng: torch.Generator) -> PictureCritics:
        _check_one_size(shapes)
        first, *others = (halving_critic(shape, self.width, self.control, rng) for shape in shapes.marginals)
        return PictureCritics(
            [first, *(nn.Sequential(*list(own)[:2], *list(first)[2:]) for own in others)], self.control
        )


def _check_one_size(shapes: Shapes) -> None:
    check_pictures(shapes.marginals)
    if len({shape[1:] for shape in shapes.marginals}) != 1:
        raise InvalidArgument(
            f"tied networks take pictures of one height and width, and these are {list(shapes.marginals)}. "
            "Bring them to one size first."
        )
