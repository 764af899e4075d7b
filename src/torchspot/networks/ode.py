"""Generators that are flows: noise carried along a learned field to a joint sample, whose density is then known."""

__all__ = ["Field", "Flow", "Probes", "flow"]

import copy
import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from torchspot.errors import InvalidArgument
from torchspot.networks.generators import Shapes
from torchspot.networks.mlp import linear
from torchspot.networks.solvers import RK4, Motion, Solver, State
from torchspot.types import Samples, Values

Points = Float[Tensor, "batch dim"]
_QUICK, _SMALL = 3, 8
Directions = Float[Tensor, "directions batch dim"]
"""v_k with Σ_k v_k v_kᵀ = I, exactly (the axes) or on average (random ones): then tr J = Σ_k v_k·J v_k."""


class Field(nn.Module):
    """ξ(z, t): fully connected with tanh between layers; time is one more input."""

    layers: Any

    def __init__(self, dim: int, *, width: int, depth: int, rng: torch.Generator) -> None:
        super().__init__()
        self.layers = nn.ModuleList(linear(a, b, rng) for a, b in pairwise([dim + 1, *[width] * depth, dim]))

    @property
    def quick_trace(self) -> bool:
        """Whether the exact trace costs no more than ξ itself, in any dimension."""
        return len(self.layers) == _QUICK

    def forward(self, z: Points, t: Any) -> Points:
        return self._hidden(z, t)[-1]

    def motion(self, t: Any, state: State) -> State:
        """dz/dt = ξ."""
        return (self(state[0], t),)

    def motion_along(self, directions: Directions) -> Motion:
        """d(z, ∫tr)/dt = (ξ, Σ_k v_k·(∂ξ/∂z v_k)): derivatives go through the layers along with the values."""

        def motion(t: Any, state: State) -> State:
            *hidden, velocity = self._hidden(state[0], t)
            v = directions @ self._first().mT
            for h, layer in zip(hidden, self.layers[1:], strict=True):
                v = (v * (1 - h * h)) @ layer.weight.mT
            return velocity, (directions * v).sum((0, 2))

        return motion

    def motion_exactly(self) -> Motion:
        """The same with the whole trace of two hidden layers: tr W₃ S₂ W₂ S₁ W₁ = s₂ᵀ (W₂ ∘ (W₁ W₃)ᵀ) s₁.

        The s are the slopes of tanh; the matrix in the middle does not depend on z.
        """
        middle = self.layers[1].weight * (self._first() @ self.layers[2].weight).mT

        def motion(t: Any, state: State) -> State:
            first, second, velocity = self._hidden(state[0], t)
            return velocity, functional.linear(1 - first * first, middle).mul(1 - second * second).sum(1)

        return motion

    def _hidden(self, z: Points, t: Any) -> list[Tensor]:
        """The output of every layer, after tanh but for the last."""
        first = self.layers[0]
        outputs = [functional.linear(z, self._first(), first.bias + t * first.weight[:, -1])]
        for layer in self.layers[1:]:
            outputs[-1] = outputs[-1].tanh()
            outputs.append(layer(outputs[-1]))
        return outputs

    def _first(self) -> Float[Tensor, "width dim"]:
        """Of the first layer, what multiplies z."""
        return self.layers[0].weight[:, :-1]


class Flow(nn.Module):
    """G(z): z(0) = A z carried to time 1 by dz/dt = ξ(z, t), in blocks of the marginals' sizes (eq:ODE).

    A is lower triangular with a positive diagonal, and stays as it is. In training the trace is estimated along so many
    random directions as there are `probes`, or is exact if there are none.

    d log p / dt = −tr ∂ξ/∂z along the path (eq:prob), so log p(G(z)) = log N(z) − log |det A| − ∫ tr ∂ξ/∂z dt. ξ starts
    at 0: an untrained flow is A z.
    """

    matrix: Tensor

    def __init__(
        self,
        shapes: Shapes,
        *,
        width: int,
        depth: int,
        matrix: Float[Tensor, "dim dim"],
        solver: Solver,
        probes: int = 0,
        rng: torch.Generator,
    ) -> None:
        super().__init__()
        if shapes.latent != sum(shapes.sizes):
            raise InvalidArgument(
                f"a flow needs as many numbers in z as in all marginals together, {sum(shapes.sizes)}, and z has "
                f"{shapes.latent}."
            )
        dim = shapes.latent
        if tuple(matrix.shape) != (dim, dim) or (matrix.is_meta is False and not _triangular(matrix)):
            raise InvalidArgument(
                f"a flow starts at A z, A lower triangular with a positive diagonal, here of shape ({dim}, {dim}). "
                "Of a covariance take torch.linalg.cholesky(covariance)."
            )
        self.shapes, self.width, self.depth = shapes, width, depth
        self.solver, self.probes = solver, probes
        self.field = Field(shapes.latent, width=width, depth=depth, rng=rng)
        for parameter in self.field.layers[-1].parameters():
            nn.init.zeros_(parameter)
        self.register_buffer("matrix", matrix.detach().clone())

    def forward(self, z: Points) -> Samples:
        """G(z)."""
        return self._parted(self._solve(self.field.motion, (z @ self.matrix.mT,), (0.0, 1.0))[0])

    def with_log_density(self, z: Points, directions: Directions | None = None) -> tuple[Samples, Values]:
        """G(z) and the log-density there. Without directions the trace is exact, along all axes."""
        w, trace = self._with_trace(z @ self.matrix.mT, (0.0, 1.0), directions)
        return self._parted(w), self._log_normal(z) - trace

    def inverse(self, xs: Samples) -> Points:
        """The z with G(z) = xs."""
        return self._unscaled(self._solve(self.field.motion, (self._joined(xs),), (1.0, 0.0))[0])

    def log_density(self, xs: Samples, directions: Directions | None = None) -> Values:
        """log p(xs), of any points. Without directions the trace is exact, along all axes."""
        start, trace = self._with_trace(self._joined(xs), (1.0, 0.0), directions)
        return self._log_normal(self._unscaled(start)) + trace  # the trace was integrated backwards

    def __str__(self) -> str:
        return f"flow of {self.depth} layers of {self.width}, {self.solver}, probes={self.probes}"

    def solved_by(self, solver: Solver) -> "Flow":
        """The same flow (the same weights) under another solver."""
        other = copy.copy(self)
        other.solver = solver
        return other

    def _with_trace(self, start: Points, span: tuple[float, float], directions: Directions | None) -> State:
        """z and ∫ tr ∂ξ/∂z dt at the end of the span."""
        if directions is None and self.field.quick_trace:
            motion = self.field.motion_exactly()
        else:
            motion = self.field.motion_along(_axes(start) if directions is None else directions)
        return self._solve(motion, (start, start.new_zeros(len(start))), span)

    def _solve(self, motion: Motion, start: State, span: tuple[float, float]) -> State:
        return self.solver(motion, start, span, self.field.parameters())

    def _log_normal(self, z: Points) -> Values:
        """log N(z; 0, I) − log |det A|."""
        log_det = self.matrix.diagonal().log().sum()
        return -0.5 * z.square().sum(1) - (0.5 * math.log(2 * math.pi) * z.shape[1] + log_det)

    def _unscaled(self, start: Points) -> Points:
        return torch.linalg.solve_triangular(self.matrix, start.mT, upper=False).mT

    def _parted(self, w: Points) -> Samples:
        return self.shapes.parted(torch.split(w, list(self.shapes.sizes), dim=1))

    def _joined(self, xs: Samples) -> Points:
        return torch.cat([x.flatten(1) for x in xs], dim=1)


def _triangular(matrix: Float[Tensor, "dim dim"]) -> bool:
    return bool((matrix.diagonal() > 0).all()) and torch.equal(matrix, matrix.tril())


def _axes(z: Points) -> Directions:
    axes = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    return axes[:, None].expand(-1, len(z), -1)


@dataclass(frozen=True)
class Probes:
    """Random directions for Hutchinson's estimate of a trace: entries ±1/√count, drawn like any batch."""

    dim: int
    count: int = 1

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch directions dim"]:
        signs = torch.randint(2, (size, self.count, self.dim), generator=generator, device=generator.device)
        return (2.0 * signs - 1.0) / math.sqrt(self.count)


@dataclass(frozen=True)
class flow:  # noqa: N801
    """Builder of a generator that is a flow: the one kind whose plan has a density."""

    width: int = 64
    depth: int = 2
    """Hidden layers of the field; with two the exact trace is cheap in any dimension."""
    solver: Solver = field(default_factory=RK4)
    """In training; plans are evaluated with `Dopri5()`."""
    probes: int | None = None
    """Random directions of Hutchinson's estimate of the trace in training; 0 for the exact one, None for that where it
    is cheap (two hidden layers, or up to 8 numbers in a joint sample) and one direction elsewhere."""
    start: Float[Tensor, "dim dim"] | None = None
    """A, lower triangular with a positive diagonal, for standardised samples; None: the identity, or the warm start of
    `EntropicSPOT`."""

    def __post_init__(self) -> None:
        sizes = (self.width, self.depth, 1 if self.probes is None else self.probes + 1)
        if not all(isinstance(size, int) and size >= 1 for size in sizes):
            raise InvalidArgument(
                "a flow needs a whole width and depth of at least 1 and probes of at least 0, and got "
                f"width={self.width!r}, depth={self.depth!r} and probes={self.probes!r}."
            )

    def __call__(self, shapes: Shapes, rng: torch.Generator) -> Flow:
        matrix = torch.eye(shapes.latent) if self.start is None else self.start
        cheap = self.depth == _QUICK - 1 or shapes.latent <= _SMALL
        probes = int(not cheap) if self.probes is None else self.probes
        sizes = {"width": self.width, "depth": self.depth}
        return Flow(shapes, **sizes, matrix=matrix, solver=self.solver, probes=probes, rng=rng)
