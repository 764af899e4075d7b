"""Solvers of dy/dt = f(t, y) for states of several tensors: fixed or adaptive steps, gradients also by the adjoint."""

__all__ = ["RK4", "Adjoint", "Dopri5", "Motion", "Solver", "State"]

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torchdiffeq import odeint, odeint_adjoint

from torchspot.errors import Diverged, InvalidArgument

State = tuple[Tensor, ...]
Motion = Callable[[Any, State], State]
"""Time and state in, the state's velocity out."""


class Solver(Protocol):
    """A way to follow a motion."""

    def __call__(self, motion: Motion, start: State, span: tuple[float, float], weights: Iterable[Tensor]) -> State:
        """The state at the end of the span; gradients reach `start` and the weights that the motion depends on."""


@dataclass(frozen=True)
class RK4:
    """The classical Runge–Kutta method of fourth order in equal steps; gradients by backpropagation through them.

    It looks at no number on the host, so steps of training can be compiled and captured.
    """

    steps: int = 4

    def __post_init__(self) -> None:
        if not (isinstance(self.steps, int) and self.steps >= 1):
            raise InvalidArgument(f"RK4 needs a whole number of steps of at least 1, and got steps={self.steps!r}.")

    def __call__(self, motion: Motion, start: State, span: tuple[float, float], weights: Iterable[Tensor]) -> State:
        state, h = start, (span[1] - span[0]) / self.steps
        for k in range(self.steps):
            t = span[0] + k * h
            k1 = motion(t, state)
            k2 = motion(t + h / 2, _moved(state, k1, h / 2))
            k3 = motion(t + h / 2, _moved(state, k2, h / 2))
            k4 = motion(t + h, _moved(state, k3, h))
            slopes = zip(k1, k2, k3, k4, strict=True)
            state = _moved(state, tuple(a + 2 * (b + c) + d for a, b, c, d in slopes), h / 6)
        return state

    def options(self) -> dict[str, Any]:
        """torchdiffeq's words for a method of the same order (the 3/8 rule) with the same steps."""
        return {"method": "rk4", "options": {"step_size": 1 / self.steps}}


@dataclass(frozen=True)
class Dopri5:
    """torchdiffeq's adaptive method of Dormand and Prince; gradients by backpropagation through its steps.

    It looks at its errors on the host, so steps of training run eagerly.
    """

    tolerance: float = 1e-6
    """Relative and absolute error of a step."""
    most_steps: int = 1000
    """A field that needs more is too stiff."""

    def __post_init__(self) -> None:
        if not self.tolerance > 0 or self.most_steps < 1:
            raise InvalidArgument(
                f"Dopri5 needs a tolerance above 0 and most_steps of at least 1, and got {self.tolerance!r} and "
                f"{self.most_steps!r}."
            )

    def __call__(self, motion: Motion, start: State, span: tuple[float, float], weights: Iterable[Tensor]) -> State:
        return _torchdiffeq(odeint, motion, start, span, self.options())

    def options(self) -> dict[str, Any]:
        """torchdiffeq's words for it."""
        steps = {"max_num_steps": self.most_steps}
        return {"method": "dopri5", "rtol": self.tolerance, "atol": self.tolerance, "options": steps}


@dataclass(frozen=True)
class Adjoint:
    """Another solver, run by torchdiffeq, with gradients from the adjoint equation of the whole state.

    That is solved backwards along with the state itself, so memory does not grow with the number of steps. Training
    runs eagerly.
    """

    solver: RK4 | Dopri5

    def __call__(self, motion: Motion, start: State, span: tuple[float, float], weights: Iterable[Tensor]) -> State:
        options = self.solver.options() | {"adjoint_params": tuple(weights)}
        return _torchdiffeq(odeint_adjoint, motion, start, span, options)


def _moved(state: State, velocity: State, h: float) -> State:
    return tuple(torch.add(y, v, alpha=h) for y, v in zip(state, velocity, strict=True))


def _torchdiffeq(
    solve: Callable[..., Any], motion: Motion, start: State, span: tuple[float, float], options: dict[str, Any]
) -> State:
    """The state at the end, or an error in words where torchdiffeq gives up."""
    times = torch.tensor(span, dtype=torch.float64, device=start[0].device)
    try:
        path = solve(motion, start, times, **options)
    except AssertionError as error:
        raise Diverged(
            f"the flow's equation could not be solved ({error}): its field is too stiff or has exploded. Train with a "
            "smaller learning rate, or with finer steps: generator=networks.ode.flow(solver=networks.solvers.RK4(16)).",
            step=None,
        ) from error
    return tuple(y[-1] for y in path)
