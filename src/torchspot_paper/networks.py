"""The networks of the paper's appendix, table by table. Where a table cannot be right as printed, the note says so.

Generators map z ∈ R^100 to one picture of each marginal; Tanh is left as ±1 and Sigmoid is brought there (2σ − 1 =
tanh of half the argument), as the last, fixed layer of a plan takes ±1 to data units.
"""

__all__ = [
    "SeparatePictures",
    "SharedPictures",
    "cnn_generators",
    "cnn_judges",
    "no_sharing_critics",
    "no_sharing_generators",
    "resnet_generators",
    "resnet_judges",
]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchspot.networks.convolutional import PictureCritics, normal_weights
from torchspot.networks.convolutions import Window
from torchspot.networks.generators import Shapes
from torchspot.networks.judges import Judges, JudgeShapes
from torchspot.networks.lipschitz import Control, Free
from torchspot.networks.mlp import leaky
from torchspot.types import Samples

_EMBEDDED = 500
"""Numbers that D_e gives."""


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


@dataclass(frozen=True)
class cnn_judges:  # noqa: N801
    """Table of λ_X, λ_Y, D_X, D_Y for USPS, MNIST and MNIST-M (tab:CNN_dis), 28 × 28, as printed.

    Max-pooling does not overlap, so it keeps a Lipschitz bound; PReLU does only while its slope is within ±1.
    """

    control: Control = field(default_factory=Free)

    @torch.random.fork_rng(devices=[])
    def __call__(self, shapes: JudgeShapes, rng: torch.Generator) -> Judges:
        made = _Convolutions(self.control, rng)
        first = [nn.Sequential(made(shape[0], 20, 5, 28), nn.MaxPool2d(2)) for shape in shapes.marginals]
        trunk = nn.Sequential(made(20, 50, 5, 12), nn.MaxPool2d(2), made(50, _EMBEDDED, 4, 4), nn.PReLU())
        return made.judges(first, trunk, shapes.classes)


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


@dataclass(frozen=True)
class resnet_judges:  # noqa: N801
    """Table of λ_X, λ_Y, D_X, D_Y for SVHN and MNIST (tab:resnet_dis).

    Deviation: pictures of 32 × 32 (printed 28, on which the 4 × 4 convolution would see 3 × 3).
    """

    control: Control = field(default_factory=Free)

    @torch.random.fork_rng(devices=[])
    def __call__(self, shapes: JudgeShapes, rng: torch.Generator) -> Judges:
        made = _Convolutions(self.control, rng)
        first = [_DownBlock(made, shape[0], 32, active=False) for shape in shapes.marginals]
        blocks = [_DownBlock(made, 128, size) for size in (16, 8)]
        trunk = nn.Sequential(*blocks, made(128, _EMBEDDED, 4, 4), nn.PReLU())
        return made.judges(first, trunk, shapes.classes)


@dataclass(frozen=True)
class _Convolutions:
    """Makes convolutions of square pictures under a control, weights as the authors' scripts have them at the start:
    Xavier's with gain √2, biases .1."""

    control: Control
    rng: torch.Generator

    def __call__(self, inputs: int, outputs: int, kernel: int, size: int, *, padding: int = 0) -> nn.Module:
        window = Window(inputs, outputs, (kernel, kernel), 1, padding, (size, size))
        made = self.control.convolution(window, self.rng)
        if isinstance(self.control, Free):
            spread = math.sqrt(2 * 2 / ((inputs + outputs) * kernel**2))
            nn.init.normal_(made.weight, 0, spread, generator=self.rng)
        assert made.bias is not None  # asked for
        nn.init.constant_(made.bias, 0.1)
        return made

    def judges(self, first: Sequence[nn.Module], trunk: nn.Module, classes: int) -> Judges:
        """With a last layer for each critic, and one for both classifiers."""
        return Judges(first, trunk, [self._last(1) for _ in first], self._last(classes), control=self.control)

    def _last(self, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Unflatten(1, (-1, 1, 1)), self(_EMBEDDED, outputs, 1, 1), nn.Flatten())


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

    def __init__(self, made: _Convolutions, inputs: int, size: int, *, active: bool = True) -> None:
        super().__init__()
        activation: Callable[[], nn.Module] = nn.ReLU if active else nn.Identity
        self.path = nn.Sequential(
            activation(),
            made(inputs, 128, 3, size, padding=1),
            nn.ReLU(),
            made(128, 128, 3, size, padding=1),
            nn.AvgPool2d(2),
        )
        self.shortcut = nn.Sequential(nn.AvgPool2d(2), made(inputs, 128, 1, size // 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.path(x) + self.shortcut(x)
