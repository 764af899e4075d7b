"""Judges: critics and classifiers of several marginals that share layers, for domain adaptation."""

__all__ = [
    "DomainNorm",
    "Group",
    "JudgeBuilder",
    "JudgeShapes",
    "Judges",
    "mlp_judges",
    "picture_judges",
    "usual_judges",
]

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


class Group(NamedTuple):
    """Samples of one marginal in a row of several: how many, of which, and whether they are data or generated."""

    size: int
    marginal: int
    real: bool


class DomainNorm(nn.Module):
    """Batch norm with statistics of each marginal's own and the same weights for all.

    In training every group of a batch is normalised by itself; only data are remembered, not generated samples.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, features: int, marginals: int, momentum: float = 0.02) -> None:
        super().__init__()
        self.momentum = momentum
        self.weight, self.bias = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.register_buffer("mean", torch.zeros(marginals, features))
        self.register_buffer("variance", torch.ones(marginals, features))

    def forward(self, h: Tensor, groups: Sequence[Group]) -> Tensor:
        sizes = [group.size for group in groups]
        if self.training and len(groups) > 1 and len(set(sizes)) == 1:
            return self._together(h, groups)
        parts = zip(torch.split(h, sizes), groups, strict=True)
        return torch.cat([self._alone(part, group) for part, group in parts])

    def _alone(self, h: Tensor, group: Group) -> Tensor:
        known = (self.mean[group.marginal], self.variance[group.marginal])
        if self.training and not group.real:
            return functional.batch_norm(h, None, None, self.weight, self.bias, training=True)
        return functional.batch_norm(h, *known, self.weight, self.bias, self.training, self.momentum)

    def _together(self, h: Tensor, groups: Sequence[Group]) -> Tensor:
        """Groups of one size as one batch with the features of all of them side by side: far fewer kernels."""
        count, features = len(groups), h.shape[1]
        rows = [group.marginal for group in groups]
        mean, variance = (torch.cat([known[k] for k in rows]) for known in (self.mean, self.variance))
        apart = h.movedim(1, -1).reshape(count, -1, *h.shape[2:], features)
        last = apart.movedim(0, -2)  # (batch, …, groups, features)
        side_by_side = last.reshape(*last.shape[:-2], -1).movedim(-1, 1)  # (batch, groups · features, …)
        weight, bias = self.weight.repeat(count), self.bias.repeat(count)
        made = functional.batch_norm(side_by_side, mean, variance, weight, bias, True, self.momentum)
        for k, group in enumerate(groups):
            if group.real:
                part = slice(k * features, (k + 1) * features)
                self.mean[group.marginal].copy_(mean[part])
                self.variance[group.marginal].copy_(variance[part])
        back = made.movedim(1, -1).reshape(*last.shape).movedim(-2, 0)  # (groups, batch, …, features)
        return back.reshape(-1, *back.shape[2:]).movedim(-1, 1)


class Judges(nn.Module):
    """Critics λ_i and classifiers D_i: first layers (one a marginal), a trunk that all share, and heads.

    First layers and trunk are the embedding D_e; λ_i and D_i stand on the same one, λ_X and λ_Y have a head each, and
    D_X and D_Y the same. First layers may be the same object. A control that keeps convolutions Lipschitz is told of
    every step. Of library builders a file can tell which it was.
    """

    def __init__(
        self,
        first: Sequence[nn.Module],
        trunk: nn.Module,
        heads: Sequence[nn.Module],
        last: nn.Module,
        *,
        control: Control | None = None,
        builder: "mlp_judges | picture_judges | None" = None,
    ) -> None:
        super().__init__()
        self.control, self.builder = control, builder
        self.first, self.trunk, self.heads, self.last = nn.ModuleList(first), trunk, nn.ModuleList(heads), last

    def embed(self, u: Float[Tensor, "batch *shape"], k: int, *, real: bool = False) -> Embedded:
        """D_e of samples of marginal k, which are data or (with `real=False`) generated."""
        return self.embed_all(((u, k, real),))[0]

    def embed_all(self, batches: Sequence[tuple[Tensor, int, bool]]) -> list[Embedded]:
        """D_e of several batches (samples, marginal, whether they are data) at once.

        The same as one after the other, but layers that they share run over all of them together.
        """
        groups = [Group(len(u), k, real) for u, k, real in batches]
        h = _through(self.trunk, self._shallow([u for u, _, _ in batches], groups), groups).flatten(1)
        return list(torch.split(h, [group.size for group in groups]))

    def shallow(self, u: Float[Tensor, "batch *shape"], k: int) -> Tensor:
        """What the first layers make of (generated) samples of marginal k."""
        return self._shallow([u], [Group(len(u), k, real=False)])

    def _shallow(self, us: Sequence[Tensor], groups: Sequence[Group]) -> Tensor:
        if all(self.first[group.marginal] is self.first[0] for group in groups):
            return _through(self.first[0], torch.cat(list(us)), groups)
        each = zip(us, groups, strict=True)
        return torch.cat([_through(self.first[group.marginal], u, [group]) for u, group in each])

    def critic(self, h: Embedded, k: int) -> Values:
        """λ_k of embedded samples."""
        return self.heads[k](h).flatten()

    def scores(self, h: Embedded) -> Scores:
        """D of embedded samples: logits."""
        return self.last(h)

    def forward(self, us: Samples) -> tuple[Values, ...]:
        """λ_i of samples of each marginal."""
        return tuple(self.critic(self.embed(u, k), k) for k, u in enumerate(us))

    @torch.no_grad()
    def take_for(self, marginal: int, other: int) -> None:
        """Samples of one marginal are now taken as those of another: the same first layers and statistics."""
        self.first[marginal].load_state_dict(self.first[other].state_dict())
        for module in self.modules():
            if isinstance(module, DomainNorm):
                module.mean[marginal].copy_(module.mean[other])
                module.variance[marginal].copy_(module.variance[other])

    def after_step(self) -> None:
        """What keeps the critics Lipschitz, if anything does, after each step of these weights."""
        if self.control is not None:
            self.control.after_step([layer for layer in self.modules() if isinstance(layer, Convolution)])


def _through(module: nn.Module, h: Tensor, groups: Sequence[Group]) -> Tensor:
    """Layer by layer: those that know marginals are told whose samples these are."""
    if isinstance(module, nn.Sequential):
        for layer in module:
            h = _through(layer, h, groups)
        return h
    return module(h, groups) if isinstance(module, DomainNorm) else module(h)


@dataclass(frozen=True)
class mlp_judges:  # noqa: N801
    """Builder of judges of vectors: first layers of each marginal's own, equal at the start, and others shared by all.

    With first layers of their own, classes may lie where others lie in the other domain.
    """

    width: int = 128
    depth: int = 3

    def __call__(self, shapes: JudgeShapes, rng: torch.Generator) -> Judges:
        size = shapes.marginals[0][0]
        first = nn.Sequential(linear(size, self.width, rng), leaky())
        trunk = nn.Sequential(
            *(layer for _ in range(self.depth - 1) for layer in (linear(self.width, self.width, rng), leaky()))
        )
        heads = [linear(self.width, 1, rng) for _ in shapes.marginals]
        firsts = [first, *[copy.deepcopy(first)] * (len(heads) - 1)]
        return Judges(firsts, trunk, heads, linear(self.width, shapes.classes, rng), builder=self)


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
        made = Judges([first] * m, trunk, heads, nn.Linear(self.embedding, shapes.classes), builder=self)
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
