"""Networks for pictures: noise to one picture of each marginal, and critics of pictures."""

__all__ = [
    "PictureCritics",
    "PictureGenerator",
    "PictureHead",
    "PictureTrunk",
    "are_pictures",
    "check_pictures",
    "halving_critic",
    "normal_weights",
    "picture_critics",
    "pictures",
]

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from torchspot.errors import InvalidArgument
from torchspot.networks.convolutions import Convolution, Window
from torchspot.networks.generators import Shapes
from torchspot.networks.lipschitz import Control, OperatorNorm
from torchspot.types import Samples, Shape, Values

Maps = Float[Tensor, "batch channels height width"]

_SMALLEST, _GROWS = 7, 8
"""Pictures are halved down to this size, and channels doubled up to this many times the width."""
_SPREAD = 0.02


def are_pictures(shapes: Sequence[Shape]) -> bool:
    """Whether all samples are (channels, height, width), large enough to be convolved."""
    return all(len(shape) == 3 and min(shape[1:]) >= _SMALLEST + 1 for shape in shapes)


class PictureTrunk(nn.Module):
    """z to maps of the size of the largest picture: a small map, doubled again and again."""

    def __init__(self, shapes: Shapes, width: int) -> None:
        super().__init__()
        check_pictures(shapes.marginals)
        sizes = _halved([max(shape[k] for shape in shapes.marginals) for k in (1, 2)])
        channels = [min(width * 2**k, _GROWS * width) for k in range(len(sizes))][::-1]
        self._start, self._size = (*sizes[-1], channels[0]), sizes[0]
        self.stem = nn.Linear(shapes.latent, math.prod(self._start), bias=False)
        layers: list[nn.Module] = [nn.BatchNorm2d(channels[0]), nn.ReLU()]
        for inputs, outputs in pairwise(channels):
            layers += [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, z: Float[Tensor, "batch latent"]) -> Maps:
        small = self.stem(z).view(-1, *self._start).permute(0, 3, 1, 2)  # (batch, channels, height, width)
        height, width = self._size
        return self.layers(small)[..., :height, :width]


class PictureHead(nn.Module):
    """Maps to the pictures of one marginal: convolutions 3 × 3 at full size, so many with batch norm, then the last.

    Another marginal's picture may be looked at too: the first convolution of both together is the sum of one of each,
    which keeps the numbers of channels round.
    """

    def __init__(self, width: int, outputs: int, depth: int, *, seen: int = 0) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.seen = nn.Conv2d(seen, width, 3, padding=1, bias=False) if seen else None
        layers: list[nn.Module] = [nn.BatchNorm2d(width), nn.ReLU()]
        for _ in range(depth - 1):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        self.rest = nn.Sequential(*layers, nn.Conv2d(width, outputs, 3, padding=1))

    def forward(self, maps: Maps, picture: Maps | None = None) -> Maps:
        h = self.first(maps)
        return self.rest(h if self.seen is None else h + self.seen(picture))


class PictureGenerator(nn.Module):
    """G(z): maps of the size of the pictures, shared by all marginals; then a few layers of each marginal's own.

    The first marginal is drawn from these maps; every other one from the maps and the first picture, so that what
    belongs together is seen in one place. All values are within ±1.
    """

    def __init__(self, shapes: Shapes, *, width: int, depth: int, rng: torch.Generator) -> None:
        super().__init__()
        self.shapes, self.width, self.depth = shapes, width, depth
        self.trunk = PictureTrunk(shapes, width)
        first, *others = (shape[0] for shape in shapes.marginals)
        self.heads = nn.ModuleList(
            [PictureHead(width, first, depth), *(PictureHead(width, c, depth, seen=first) for c in others)]
        )
        normal_weights(self, rng)

    def forward(self, z: Float[Tensor, "batch latent"]) -> Samples:
        maps = self.trunk(z)
        first = self.heads[0](maps).tanh()
        made = (first, *(head(maps, first).tanh() for head in self.heads[1:]))
        return tuple(_sized(x, shape) for x, shape in zip(made, self.shapes.marginals, strict=True))


class PictureCritics(nn.Module):
    """λ_i: for each marginal a network with convolutions under a Lipschitz control; networks may share layers."""

    def __init__(self, networks: Sequence[nn.Module], control: Control) -> None:
        super().__init__()
        self.networks, self.control = nn.ModuleList(networks), control

    def forward(self, us: Samples) -> tuple[Values, ...]:
        return tuple(network(_last(u)).flatten() for network, u in zip(self.networks, us, strict=True))

    def after_step(self) -> None:
        """What the Lipschitz control does after each step of these weights."""
        self.control.after_step(self._layers())

    def operator_norms(self) -> list[float]:
        """The measured largest singular value of every convolution, marginal by marginal, those shared once."""
        return [layer.operator_norm() for layer in self._layers()]

    def _layers(self) -> list[Convolution]:
        return [layer for layer in self.modules() if isinstance(layer, Convolution)]


@dataclass(frozen=True)
class pictures:  # noqa: N801
    """Builder of a generator of pictures."""

    width: int = 64
    """Channels at full size, doubled with each halving."""
    depth: int = 2
    """Convolutions of each marginal's own before the last, at least one."""

    @torch.random.fork_rng(devices=[])
    def __call__(self, shapes: Shapes, rng: torch.Generator) -> PictureGenerator:
        return PictureGenerator(shapes, width=self.width, depth=self.depth, rng=rng)


@dataclass(frozen=True)
class picture_critics:  # noqa: N801
    """Builder of critics of convolutions that halve the picture."""

    width: int = 128
    """Channels after the first convolution."""
    control: Control = field(default_factory=OperatorNorm)

    @torch.random.fork_rng(devices=[])
    def __call__(self, shapes: Shapes, rng: torch.Generator) -> PictureCritics:
        check_pictures(shapes.marginals)
        networks = [halving_critic(shape, self.width, self.control, rng) for shape in shapes.marginals]
        return PictureCritics(networks, self.control)


def normal_weights(module: nn.Module, rng: torch.Generator) -> None:
    """Weights of linear layers and convolutions from N(0, .02²), biases 0, as is usual for pictures."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            layer.weight = nn.Parameter(torch.empty(layer.weight.shape).normal_(0, _SPREAD, generator=rng))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def halving_critic(shape: Shape, width: int, control: Control, rng: torch.Generator) -> nn.Sequential:
    """Convolutions 4 × 4 that halve, one 3 × 3, and one over all that is left."""
    layers: list[nn.Module] = []
    inputs, outputs, size = shape[0], width, (shape[1], shape[2])
    for _ in _halved(size)[1:]:
        window = Window(inputs, outputs, (4, 4), 2, 1, size)
        layers += [control.convolution(window, rng), control.picture_activation()]
        inputs, outputs, size = outputs, min(2 * outputs, _GROWS * width), window.out_size
    window = Window(inputs, outputs, (3, 3), 1, 1, size)
    layers += [control.convolution(window, rng), control.picture_activation()]
    return nn.Sequential(*layers, control.convolution(Window(outputs, 1, size, 1, 0, size), rng, bias=False))


def _halved(size: Iterable[int]) -> list[tuple[int, int]]:
    """The size, and its halves (rounded up) until the smaller side is at most 7."""
    height, width = size
    sizes = [(height, width)]
    while min(sizes[-1]) > _SMALLEST:
        sizes.append(((sizes[-1][0] + 1) // 2, (sizes[-1][1] + 1) // 2))
    return sizes


def _sized(x: Maps, shape: Shape) -> Maps:
    """Pictures of a marginal that is smaller than the largest."""
    return x if x.shape[2:] == shape[1:] else functional.adaptive_avg_pool2d(x, (shape[1], shape[2]))


def _last(u: Maps) -> Maps:
    """The same pictures with channels last in memory, where convolutions on a GPU want them."""
    return u.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) if u.is_cuda else u


def check_pictures(shapes: Sequence[Shape]) -> None:
    """Raises what says what pictures are, where these are none."""
    if not are_pictures(shapes):
        raise InvalidArgument(
            f"networks for pictures take samples of shape (channels, height, width), at least {_SMALLEST + 1} pixels "
            f"high and wide, and these are {list(shapes)}. Reshape the data, or use networks for vectors."
        )
