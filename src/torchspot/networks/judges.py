"""Judges: critics and classifiers of several marginals that share layers, for domain adaptation."""

__all__ = ["DomainNorm", "JudgeBuilder", "JudgeShapes", "Judges", "mlp_judges", "picture_judges", "usual_judges"]

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from torchspot.networks.convolutional import check_pictures
from torchspot.networks.convolutions import Convolution
from torchspot.networks.lipschitz import Control
from torchspot.networks.mlp import LEAK, leaky, linear
from torchspot.types import Samples, Shape, Values

Embedded = Float[Tensor, "batch dim"]
Scores = Float[Tensor, "batch classes"]


@dataclass(frozen=True)
class JudgeShapes:
    """What a builder of judges must know: the shape of one sample of each marginal, and how many classes there are."""

    marginals: tuple[Shape, ...]
    classes: int


class DomainNorm(nn.Module):
    """Batch norm with statistics of each marginal's own and the same weights for all.

    In training every batch is normalised by itself; only batches of data are remembered, not generated ones.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, features: int, marginals: int, momentum: float = 0.02) -> None:
        super().__init__()
        self.momentum = momentum
        self.weight, self.bias = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.register_buffer("mean", torch.zeros(marginals, features))
        self.register_buffer("variance", torch.ones(marginals, features))

    def forward(self, h: Tensor, k: int, real: bool) -> Tensor:
        if self.training and not real:
            return functional.batch_norm(h, None, None, self.weight, self.bias, training=True)
        return functional.batch_norm(
            h, self.mean[k], self.variance[k], self.weight, self.bias, self.training, self.momentum
        )


class Judges(nn.Module):
    """Critics λ_i and classifiers D_i: first layers (one a marginal), a trunk that all share, and heads.

    First layers and trunk are the embedding D_e; λ_i and D_i stand on the same one, λ_X and λ_Y have a head each, and
    D_X and D_Y the same. First layers may be the same object. A control that keeps convolutions Lipschitz is told of
    every step.
    """

    def __init__(
        self,
        first: Sequence[nn.Module],
        trunk: nn.Module,
        heads: Sequence[nn.Module],
        last: nn.Module,
        *,
        control: Control | None = None,
    ) -> None:
        super().__init__()
        self.control = control
        self.first, self.trunk, self.heads, self.last = nn.ModuleList(first), trunk, nn.ModuleList(heads), last

    def embed(self, u: Float[Tensor, "batch *shape"], k: int, *, real: bool = False) -> Embedded:
        """D_e of samples of marginal k, which are data or (with `real=False`) generated."""
        return _through(self.trunk, self.shallow(u, k, real=real), k, real).flatten(1)

    def shallow(self, u: Float[Tensor, "batch *shape"], k: int, *, real: bool = False) -> Tensor:
        """What the first layers make of samples of marginal k."""
        return _through(self.first[k], u, k, real)

    def critic(self, h: Embedded, k: int) -> Values:
        """λ_k of embedded samples."""
        return self.heads[k](h).flatten()

    def scores(self, h: Embedded) -> Scores:
        """D of embedded samples: logits."""
        return self.last(h)

    def forward(self, us: Samples) -> tuple[Values, ...]:
        """λ_i of samples of each marginal."""
        return tuple(self.critic(self.embed(u, k), k) for k, u in enumerate(us))

    def after_step(self) -> None:
        """What keeps the critics Lipschitz, if anything does, after each step of these weights."""
        if self.control is not None:
            self.control.after_step([layer for layer in self.modules() if isinstance(layer, Convolution)])


def _through(module: nn.Module, h: Tensor, k: int, real: bool) -> Tensor:
    """Layer by layer: those that know marginals are told which it is."""
    if isinstance(module, nn.Sequential):
        for layer in module:
            h = _through(layer, h, k, real)
        return h
    return module(h, k, real) if isinstance(module, DomainNorm) else module(h)


@dataclass(frozen=True)
class mlp_judges:  # noqa: N801
    """Builder of judges of vectors: hidden layers that are the same for all marginals."""

    width: int = 128
    depth: int = 2

    def __call__(self, shapes: JudgeShapes, rng: torch.Generator) -> Judges:
        size = shapes.marginals[0][0]
        first = nn.Sequential(linear(size, self.width, rng), leaky())
        trunk = nn.Sequential(
            *(layer for _ in range(self.depth - 1) for layer in (linear(self.width, self.width, rng), leaky()))
        )
        heads = [linear(self.width, 1, rng) for _ in shapes.marginals]
        return Judges([first] * len(heads), trunk, heads, linear(self.width, shapes.classes, rng))


@dataclass(frozen=True)
class picture_judges:  # noqa: N801
    """Builder of judges of pictures: convolutions, of which every second halves, and a layer over all that is left.

    All layers are the same for all marginals; batch norm has statistics of each marginal's own.
    """

    width: int = 32
    """Channels after the first convolution, doubled by the others up to four times as many."""
    embedding: int = 256
    """Numbers that D_e gives."""

    @torch.random.fork_rng(devices=[])
    def __call__(self, shapes: JudgeShapes, rng: torch.Generator) -> Judges:
        check_pictures(shapes.marginals)
        m, most = len(shapes.marginals), 4 * self.width
        channels, *size = shapes.marginals[0]
        first = nn.Sequential(*_block(nn.Conv2d(channels, self.width, 5, 2, 2, bias=False), m))
        layers, inputs, size = [], self.width, _halves(size)
        while True:
            outputs = min(2 * inputs, most)
            layers += _block(nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False), m)
            inputs, outputs = outputs, min(2 * outputs, most)
            if min(size) <= _LEFT:
                break
            layers += _block(nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), m)
            inputs, size = outputs, _halves(size)
        flat = nn.Linear(inputs * size[0] * size[1], self.embedding, bias=False)
        trunk = nn.Sequential(*layers, nn.Flatten(), *_block(flat, m))
        heads = [nn.Linear(self.embedding, 1) for _ in range(m)]
        made = Judges([first] * m, trunk, heads, nn.Linear(self.embedding, shapes.classes))
        scaled_weights(made.modules(), rng)
        return made


_LEFT = 8
"""Pictures are halved until they are at most this high or wide."""


def _halves(size: list[int]) -> list[int]:
    return [(side + 1) // 2 for side in size]


def _block(layer: nn.Linear | nn.Conv2d, marginals: int) -> list[nn.Module]:
    """A layer, its norm and its activation."""
    return [layer, DomainNorm(len(layer.weight), marginals), leaky()]


JudgeBuilder = Callable[[JudgeShapes, torch.Generator], Judges]
"""Makes judges for these shapes with weights from this generator."""


def usual_judges(*, pictures: bool, gpu: bool) -> JudgeBuilder:
    """Those for vectors or pictures; without a GPU narrower ones."""
    return picture_judges(32 if gpu else 16) if pictures else mlp_judges()


def scaled_weights(modules: Iterable[nn.Module], rng: torch.Generator) -> None:
    """Weights from N(0, 2 / (1 + leak²) / inputs), which keeps the spread of what passes through; biases 0."""
    for layer in modules:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            inputs = layer.weight[0].numel()
            spread = (2 / (1 + LEAK**2) / inputs) ** 0.5
            layer.weight = nn.Parameter(torch.empty(layer.weight.shape).normal_(0, spread, generator=rng))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
