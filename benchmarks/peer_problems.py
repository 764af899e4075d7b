"""Pairs of laws with known optimal plans for the comparison with peers, and a learned cost."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from torchspot.discrepancies import sliced_w2

CHUNK = 500_000
TRUTH_CHUNKS = 4
PULLS = 4

Rng = torch.Generator
Cost = Callable[[Tensor, Tensor], Tensor]
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Laws:
    """A law of x, and how an optimal plan moves it."""

    base: Callable[[int, Rng], Tensor]
    move: Callable[[Tensor, Rng], Tensor]
    cost: Cost
    potential: Function
    """An optimal φ: c(x, y) ≥ φ(x) + ψ(y) with equality in the plan; for the Euclidean cost ψ = −φ."""
    is_map: bool = True
    """Whether the optimal plan is a map, and the only one."""
    embed: Function = lambda x: x
    """Where the optimal plan is a map and its errors are measured: φ(x) for a learned cost."""
    unseen: "Laws | None" = None
    """The same laws before they are seen through a network, whose costs are the same."""

    def sample(self, n: int, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """n unpaired samples of each marginal, made in pieces."""
        rng = torch.Generator(device).manual_seed(seed)
        x = _filled(n, lambda size: self.base(size, rng))
        return x, _filled(n, lambda size: self.move(self.base(size, rng), rng))

    def truth(self, device: torch.device) -> float:
        """The optimal cost, over two million pairs of the optimal plan (a standard error of about .05 %)."""
        if self.unseen is not None:
            return self.unseen.truth(device)
        rng = torch.Generator(device).manual_seed(10**6)
        means = []
        for _ in range(TRUTH_CHUNKS):
            x = self.base(CHUNK, rng)
            means.append(self.cost(x, self.move(x, rng)).double().mean())
        return float(torch.stack(means).mean())

    def spread_of_a_row(self, device: torch.device) -> float:
        """One standard deviation of what one row of each law says of the optimal cost; n rows say it √n times better.

        With optimal potentials it is that of φ(x) + ψ(y), to first order in 1/√n.
        """
        rng = torch.Generator(device).manual_seed(10**6)
        x = self.base(CHUNK, rng)
        of_x = self.potential(x).double()
        of_y = self.cost(x, self.move(x, rng)).double() - of_x
        return float((of_x.var() + of_y.var()).sqrt())

    def pair_error(self, x: Tensor, y: Tensor, seed: int, truth: float) -> float:
        """How far partners y of fresh points x are from an optimal plan; 0 for one.

        Where that is a map T: E‖y − T(x)‖² / Var T(x). For the Euclidean cost, whose optimal plans are many: what the
        pairs cost above what the potential allows, and √dim times the sliced W2 of y from its law, above the noise
        floor, over the optimal cost.
        """
        rng = torch.Generator(x.device).manual_seed(seed)
        if self.is_map:
            right, made = self.embed(self.move(x, rng)), self.embed(y)
            return float((made - right).square().sum(1).mean() / right.var(0).sum())
        excess = self.cost(x, y) - self.potential(x) + self.potential(y)
        one, two = (self.move(self.base(len(x), rng), rng).double() for _ in range(2))
        apart, floor = (float(sliced_w2(a.double(), one)) for a in (y, two))
        beside = math.sqrt(max(0.0, apart**2 - floor**2) * x.shape[1])
        return (float(excess.mean()) + beside) / truth


def laws(problem: str, cost: str, dim: int) -> Laws:
    """A Gaussian or a mixture of three, and an optimal plan under the Euclidean, squared Euclidean or learned cost.

    Euclidean: a Gaussian grows to twice its width; a mixture is pulled part of the way to the nearest of four points.
    Squared: a Gaussian is mapped by a symmetric matrix and moved by 2; a mixture by the gradient of the convex
    ‖x‖²/4 + log Σ exp(a_k·x).
    Learned: as squared, seen through a network: c(x, y) = ‖φ(x) − φ(y)‖².
    """
    rng = torch.Generator().manual_seed(dim)
    pulls, centres = 4.0 * _directions(PULLS, dim, rng), 3.0 * _directions(3, dim, rng)
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=rng))[0]
    matrix = turn * (0.5 + torch.rand(dim, generator=rng)) @ turn.T
    base = _normal(dim) if problem == "gaussian" else _mixture(centres)
    if cost == "euclidean":
        if problem == "gaussian":
            return Laws(base, lambda x, rng: 2 * x, euclidean, lambda x: -x.norm(dim=1), is_map=False)
        return Laws(base, _towards(pulls), euclidean, _distance_to(pulls), is_map=False)
    convex, slope = _quadratic(matrix, 0.5 * pulls[0]) if problem == "gaussian" else _softmax(pulls)
    plain = Laws(base, lambda x, rng: slope(x), squared, lambda x: x.square().sum(1) - 2 * convex(x))
    return plain if cost == "squared_euclidean" else _seen_through(trained_couplings(dim), plain)


def euclidean(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).norm(dim=1)


def squared(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).square().sum(1)


class LearnedCost(nn.Module):
    """‖φ(x) − φ(y)‖² with a trained network φ: to a solver, a function of two batches of rows and no more."""

    def __init__(self, couplings: "Couplings") -> None:
        super().__init__()
        self.couplings = couplings.requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return squared(self.couplings(x), self.couplings(y))


class Couplings(nn.Module):
    """An invertible network: one half of the coordinates is shifted by a function of the other, in turns."""

    def __init__(self, dim: int, width: int = 32, layers: int = 4) -> None:
        super().__init__()
        self.first = (dim + 1) // 2
        sizes = [
            (self.first, dim - self.first) if k % 2 == 0 else (dim - self.first, self.first) for k in range(layers)
        ]
        self.shifts = nn.ModuleList(
            nn.Sequential(nn.Linear(a, width), nn.Tanh(), nn.Linear(width, b)) for a, b in sizes
        )

    def forward(self, x: Tensor) -> Tensor:
        a, b = x[:, : self.first], x[:, self.first :]
        for k, shift in enumerate(self.shifts):
            a, b = (a, b + shift(a)) if k % 2 == 0 else (a + shift(b), b)
        return torch.cat((a, b), dim=1)

    def inverse(self, u: Tensor) -> Tensor:
        """The x with φ(x) = u."""
        a, b = u[:, : self.first], u[:, self.first :]
        for k, shift in reversed(list(enumerate(self.shifts))):
            a, b = (a, b - shift(a)) if k % 2 == 0 else (a - shift(b), b)
        return torch.cat((a, b), dim=1)


@cache
def trained_couplings(dim: int, steps: int = 200) -> Couplings:
    """φ learned from examples: x is a bent view of hidden u, and φ(x) is to be u. On the CPU, the same every time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(dim)
        network = Couplings(dim)
        optimizer = torch.optim.Adam(network.parameters(), 1e-2)
        for _ in range(steps):
            u = 2 * torch.randn(128, dim)
            bent = u + 0.8 * torch.sin(u.roll(1, dims=1))
            loss = (network(bent) - u).square().sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.set_num_threads(threads)
    return network.requires_grad_(False)


def _seen_through(couplings: Couplings, plain: Laws) -> Laws:
    def on(x: Tensor) -> Couplings:
        return couplings.to(x.device)

    return Laws(
        lambda n, rng: couplings.to(rng.device).inverse(plain.base(n, rng)),
        lambda x, rng: on(x).inverse(plain.move(on(x)(x), rng)),
        LearnedCost(couplings),
        lambda x: plain.potential(on(x)(x)),
        embed=lambda x: on(x)(x),
        unseen=plain,
    )


def _normal(dim: int) -> Callable[[int, Rng], Tensor]:
    return lambda n, rng: torch.randn(n, dim, generator=rng, device=rng.device)


def _mixture(centres: Tensor) -> Callable[[int, Rng], Tensor]:
    """Parts of a half, .3 and .2."""

    def base(n: int, rng: Rng) -> Tensor:
        place = torch.rand(n, generator=rng, device=rng.device)
        part = (place > 0.5).long() + (place > 0.8)
        return centres.to(rng.device)[part] + torch.randn(n, centres.shape[1], generator=rng, device=rng.device)

    return base


def _towards(pulls: Tensor) -> Callable[[Tensor, Rng], Tensor]:
    """A uniform part of the way to the nearest."""

    def move(x: Tensor, rng: Rng) -> Tensor:
        here = pulls.to(x)
        nearest = here[torch.cdist(x, here).argmin(1)]
        return x + torch.rand(len(x), 1, generator=rng, device=x.device) * (nearest - x)

    return move


def _distance_to(pulls: Tensor) -> Function:
    """‖x − nearest‖."""
    return lambda x: torch.cdist(x, pulls.to(x)).amin(1)


def _quadratic(matrix: Tensor, shift: Tensor) -> tuple[Function, Function]:
    """x·Mx/2 + b·x and its gradient."""
    return (
        lambda x: ((x @ matrix.to(x)) * x).sum(1) / 2 + x @ shift.to(x),
        lambda x: x @ matrix.to(x) + shift.to(x),
    )


def _softmax(pulls: Tensor) -> tuple[Function, Function]:
    """‖x‖²/4 + log Σ exp(a_k·x) and its gradient."""
    return (
        lambda x: x.square().sum(1) / 4 + (x @ pulls.to(x).T).logsumexp(1),
        lambda x: 0.5 * x + (x @ pulls.to(x).T).softmax(1) @ pulls.to(x),
    )


def _directions(count: int, dim: int, rng: Rng) -> Tensor:
    a = torch.randn(count, dim, generator=rng)
    return a / a.norm(dim=1, keepdim=True)


def _filled(n: int, draw: Callable[[int], Tensor]) -> Tensor:
    """n rows, without room for more than a piece beside them."""
    first = draw(min(CHUNK, n))
    rows = first.new_empty(n, first.shape[1])
    rows[: len(first)] = first
    for start in range(len(first), n, CHUNK):
        rows[start : start + CHUNK] = draw(min(CHUNK, n - start))
    return rows
