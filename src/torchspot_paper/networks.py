"""The networks of the paper's appendix, table by table. Where a table cannot be right as printed, the note says so.

Generators map z ∈ R^100 to one picture of each marginal; Tanh is left as ±1 and Sigmoid is brought there (2σ − 1 =
tanh of half the argument), as the last, fixed layer of a plan takes ±1 to data units.
"""

__all__ = [
    "Judges",
    "SeparatePictures",
    "SharedPictures",
    "cnn_generators",
    "cnn_judges",
    "no_sharing_critics",
    "no_sharing_generators",
    "resnet_generators",
    "resnet_judges",
]

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchspot.networks.convolutional import PictureCritics, normal_weights
from torchspot.networks.convolutions import Window
from torchspot.networks.generators import Shapes
from torchspot.networks.lipschitz import Control
from torchspot.networks.mlp import leaky
from torchspot.types import Samples, Values

CLASSES = 10


class SeparatePictures(nn.Module):
    """G_i(z): one network for each marginal, sharing nothing."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, z: Float[Tensor, "batch latent"]) -> Samples:
        return tuple(network(z) for network in self.networks)


class SharedPictures(nn.Module):
    """G_i(z): a trunk that is the same for all marginals and a last layer for each."""

    def __init__(self, trunk: nn.Module, heads: Sequence[nn.Module]) -> None:
        super().__init__()
        self.trunk, self.heads = trunk, nn.ModuleList(heads)

    def forward(self, z: Float[Tensor, "batch latent"]) -> Samples:
        maps = self.trunk(z)
        return tuple((head(maps) / 2).tanh() for head in self.heads)


class Judges(nn.Module):
    """Critics λ_X, λ_Y and classifiers D_X, D_Y: first layers (one a marginal), a trunk that all share, and heads.

    λ_i and D_i share their first layer, λ_X and λ_Y have a head each, and D_X and D_Y the same.
    """

    def __init__(
        self, first: Sequence[nn.Module], trunk: nn.Module, heads: Sequence[nn.Module], last: nn.Module
    ) -> None:
        super().__init__()
        self.critics = nn.ModuleList(nn.Sequential(f, trunk, head) for f, head in zip(first, heads, strict=True))
        self.classifiers = nn.ModuleList(nn.Sequential(f, trunk, last) for f in first)

    def forward(self, us: Samples) -> tuple[Values, ...]:
        """λ_i of samples of each marginal."""
        return tuple(critic(u).flatten() for critic, u in zip(self.critics, us, strict=True))

    def scores(self, us: Samples) -> tuple[Float[Tensor, "batch classes"], ...]:
        """D_i of samples of each marginal."""
        return tuple(judge(u).flatten(1) for judge, u in zip(self.classifiers, us, strict=True))


@torch.random.fork_rng(devices=[])
def no_sharing_generators(shapes: Shapes, rng: torch.Generator) -> SeparatePictures:
    """Table "CNN architecture for experiments of real datasets" (tab:CNN_gen_noshare): 64 × 64, as printed.

    Weights from N(0, .02²), which the table does not say and the authors' scripts do.
    """
    made = SeparatePictures([_dcgan(shapes.latent, shape[0]) for shape in shapes.marginals])
    normal_weights(made, rng)
    return made


@dataclass(frozen=True)
class no_sharing_critics:  # noqa: N801
    """Table of λ_X, λ_Y of section 5.3 (tab:CNN_dis1), 64 × 64.

    Deviations: the first convolution has stride 2 and padding 1 (printed: 1 and 0, which ends at 4 × 4 instead of 1);
    LeakyReLU .2 instead of ReLU; no batch norm, which no Lipschitz bound survives; no bias in the last layer.
    """

    control: Control

    def __call__(self, shapes: Shapes, rng: torch.Generator) -> PictureCritics:
        return PictureCritics([self._critic(shape[0], rng) for shape in shapes.marginals], self.control)

    def _critic(self, channels: int, rng: torch.Generator) -> nn.Sequential:
        layers: list[nn.Module] = []
        inputs, size = channels, 64
        for outputs in (64, 128, 256, 512):
            window = Window(inputs, outputs, (4, 4), 2, 1, (size, size))
            layers += [self.control.convolution(window, rng), leaky()]
            inputs, size = outputs, size // 2
        last = self.control.convolution(Window(512, 1, (4, 4), 1, 0, (4, 4)), rng, bias=False)
        return nn.Sequential(*layers, last)


@torch.random.fork_rng(devices=[])
def cnn_generators(shapes: Shapes, rng: torch.Generator) -> SharedPictures:
    """Table of G_X, G_Y for USPS, MNIST and MNIST-M (tab:CNN_gen), 28 × 28.

    Deviation: the last kernel is 6 × 6 (printed 3 × 6, which gives 25 × 28).
    """
    trunk = nn.Sequential(
        _as_map(),
        *_doubling(shapes.latent, 1024, 4, 1, 0),
        *_doubling(1024, 512, 3, 2, 1),
        *_doubling(512, 256, 3, 2, 1),
        *_doubling(256, 128, 3, 2, 1),
    )
    made = SharedPictures(trunk, [nn.ConvTranspose2d(128, shape[0], 6, 1, 1) for shape in shapes.marginals])
    normal_weights(made, rng)
    return made


@torch.random.fork_rng(devices=[])
def cnn_judges(shapes: Shapes, rng: torch.Generator, *, classes: int = CLASSES) -> Judges:
    """Table of λ_X, λ_Y, D_X, D_Y for USPS, MNIST and MNIST-M (tab:CNN_dis), 28 × 28, as printed.

    Max-pooling does not overlap, so it keeps a Lipschitz bound; PReLU does only while its slope is within ±1.
    """
    first = [nn.Sequential(nn.Conv2d(shape[0], 20, 5), nn.MaxPool2d(2)) for shape in shapes.marginals]
    trunk = nn.Sequential(nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Conv2d(50, 500, 4), nn.PReLU())
    return _judges(first, trunk, classes, rng)


@torch.random.fork_rng(devices=[])
def resnet_generators(shapes: Shapes, rng: torch.Generator) -> SharedPictures:
    """Table of G_X, G_Y for SVHN and MNIST (tab:resnet_gen), 32 × 32.

    Deviation: the last convolution has padding 1 (printed 0, which gives 30 × 30).
    """
    trunk = nn.Sequential(
        nn.Linear(shapes.latent, 128 * 16),
        nn.Unflatten(1, (128, 4, 4)),
        *(_UpBlock(128) for _ in range(3)),
        nn.BatchNorm2d(128),
        nn.PReLU(),
    )
    made = SharedPictures(trunk, [nn.Conv2d(128, shape[0], 3, padding=1) for shape in shapes.marginals])
    normal_weights(made, rng)
    return made


@torch.random.fork_rng(devices=[])
def resnet_judges(shapes: Shapes, rng: torch.Generator, *, classes: int = CLASSES) -> Judges:
    """Table of λ_X, λ_Y, D_X, D_Y for SVHN and MNIST (tab:resnet_dis).

    Deviation: pictures of 32 × 32 (printed 28, on which the 4 × 4 convolution would see 3 × 3).
    """
    first = [_DownBlock(shape[0], 128, active=False) for shape in shapes.marginals]
    trunk = nn.Sequential(_DownBlock(128, 128), _DownBlock(128, 128), nn.Conv2d(128, 500, 4), nn.PReLU())
    return _judges(first, trunk, classes, rng)


def _judges(first: Sequence[nn.Module], trunk: nn.Module, classes: int, rng: torch.Generator) -> Judges:
    made = Judges(first, trunk, [nn.Conv2d(500, 1, 1) for _ in first], nn.Conv2d(500, classes, 1))
    normal_weights(made, rng)
    return made


def _dcgan(latent: int, channels: int) -> nn.Sequential:
    layers: list[nn.Module] = [_as_map()]
    inputs = latent
    for outputs, stride, padding in ((512, 1, 0), (256, 2, 1), (128, 2, 1), (64, 2, 1)):
        layers += [nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)]
        layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, channels, 4, 2, 1), nn.Tanh())


def _doubling(inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> tuple[nn.Module, ...]:
    layer = nn.ConvTranspose2d(inputs, outputs, kernel, stride, padding, bias=False)
    return layer, nn.BatchNorm2d(outputs), nn.PReLU()


def _as_map() -> nn.Module:
    return nn.Unflatten(1, (-1, 1, 1))


class _UpBlock(nn.Module):
    """x ↦ up(x) + conv(relu(bn(conv(up(relu(bn(x))))))): the residual block of Miyato et al. (2018) for generators."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.up = nn.Upsample(scale_factor=2)
        self.before = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU())
        self.after = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x) + self.after(self.up(self.before(x)))


class _DownBlock(nn.Module):
    """x ↦ pool(conv1(x)) + pool(conv(relu(conv(relu(x))))): theirs for critics; the first begins without ReLU."""

    def __init__(self, inputs: int, outputs: int, *, active: bool = True) -> None:
        super().__init__()
        activation: Callable[[], nn.Module] = nn.ReLU if active else nn.Identity
        self.path = nn.Sequential(
            activation(),
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.AvgPool2d(2),
        )
        self.shortcut = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(inputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.path(x) + self.shortcut(x)
