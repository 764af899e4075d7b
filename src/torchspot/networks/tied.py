"""Networks of which marginals share part: the same module objects, so that one step moves them for all."""

__all__ = ["TiedCritics", "TiedGenerator", "tied", "tied_critics"]

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchspot.errors import InvalidArgument
from torchspot.networks.convolutional import PictureCritics, PictureHead, PictureTrunk, normal_weights
from torchspot.networks.generators import Shapes
from torchspot.networks.lipschitz import Control, Free
from torchspot.types import Samples, Values


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


class TiedCritics(nn.Module):
    """λ_i of pictures of one size: each marginal has its own first layer, and all others are the same."""

    def __init__(self, shapes: Shapes, *, width: int, control: Control, rng: torch.Generator) -> None:
        super().__init__()
        _check_one_size(shapes)
        self.critics = PictureCritics(shapes, width=width, control=control, rng=rng)
        first, *others = self.critics.networks
        assert isinstance(first, nn.Sequential)
        for network in others:
            assert isinstance(network, nn.Sequential)
            for k in range(2, len(first)):
                network[k] = first[k]

    def forward(self, us: Samples) -> tuple[Values, ...]:
        return self.critics(us)

    def after_step(self) -> None:
        """What the Lipschitz control does after each step of these weights."""
        self.critics.after_step()

    def operator_norms(self) -> list[float]:
        """The measured largest singular value of every convolution, those shared once."""
        return self.critics.operator_norms()


@dataclass(frozen=True)
class tied:  # noqa: N801
    """Builder of a generator of pictures whose marginals share all but the last layers."""

    width: int = 32
    depth: int = 2

    def __call__(self, shapes: Shapes, rng: torch.Generator) -> TiedGenerator:
        return TiedGenerator(shapes, width=self.width, depth=self.depth, rng=rng)


@dataclass(frozen=True)
class tied_critics:  # noqa: N801
    """Builder of critics of pictures that share all but the first layer."""

    width: int = 64
    control: Control = field(default_factory=Free)

    def __call__(self, shapes: Shapes, rng: torch.Generator) -> TiedCritics:
        return TiedCritics(shapes, width=self.width, control=self.control, rng=rng)


def _check_one_size(shapes: Shapes) -> None:
    if len({shape[1:] for shape in shapes.marginals}) != 1:
        raise InvalidArgument(
            f"tied networks take pictures of one height and width, and these are {list(shapes.marginals)}. "
            "Bring them to one size first."
        )
