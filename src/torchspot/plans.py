"""What solvers return and judges take: plans one can draw from, save and load."""

__all__ = ["DensityPlan", "PooledPlan", "PushforwardPlan", "load"]

import copy
import math
import statistics
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from torchspot import costs, latents, storage
from torchspot.data.arrays import HeldOut
from torchspot.errors import CorruptFile, InvalidArgument
from torchspot.latents import Latent
from torchspot.networks.generators import InDataUnits, Shapes, Units
from torchspot.networks.ode import Flow, Probes
from torchspot.networks.solvers import Dopri5
from torchspot.networks.specification import from_spec, to_spec
from torchspot.random import Key, fresh_seed, generator
from torchspot.types import Cost, Estimate, Samples, Values

FILE_NAME = "plan.safetensors"

_KIND, _VERSION = "pushforward plan", 2
_CHUNK = 1 << 16
_DENSITY_CHUNK = 1 << 21
_COMPARED, _FAR = 2048, 0.01
_NODES = {1: (257, 513, 1025, 2049, 4097), 2: (65, 129, 257, 513)}
"""Points of a quadrature along each axis, more and more until nothing changes, by the number of axes."""
_RANGE, _SETTLED = 20_000, 1e-4
_FINE = Dopri5(tolerance=1e-6)
"""For densities, in float64."""


@dataclass(frozen=True)
class PushforwardPlan:
    """The law of G(z): a coupling of the marginals, drawn from by mapping noise."""

    generator: InDataUnits
    latent: Latent
    cost: Cost
    held_out: tuple[HeldOut | None, ...] = ()
    """For each marginal, the rows that training did not see; None for a source without rows."""
    facts: dict[str, Any] = field(default_factory=dict)
    """How the plan was made: η and where it came from, steps, seed. Plain JSON values."""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of one sample of each marginal."""
        return tuple(tuple(mean.shape) for mean in self.generator.units.means)

    def sample(self, n: int, seed: int | None = None) -> Samples:
        """n joint samples: row k of all marginals belongs together. Without a seed, new ones each time."""
        if n < 1:
            raise InvalidArgument(f"sample(n) needs n >= 1, and got {n}.")
        parts = zip(*self._draws(n, fresh_seed() if seed is None else seed), strict=True)
        return tuple(torch.cat(part) for part in parts)

    def expected_cost(self, n: int = 100_000, seed: int = 0) -> Estimate:
        """E c(G(z)) from n draws, with its Monte-Carlo error."""
        if n < 2:
            raise InvalidArgument(f"expected_cost(n) needs n >= 2, and got {n}.")
        with torch.no_grad():
            values = torch.cat([self.cost(*xs).double() for xs in self._draws(n, seed)])
        return Estimate(float(values.mean()), float(values.std()) / math.sqrt(n))

    def save(self, path: str | Path) -> Path:
        """Writes one file (safetensors with JSON in its header), atomically. A folder gets a plan.safetensors."""
        return _save(Path(path), (self,))

    @torch.no_grad()
    def _draws(self, n: int, seed: int) -> Iterator[Samples]:
        units = self.generator.units
        rng = generator(Key(seed, "sample"), units.scale.device)
        for start in range(0, n, _CHUNK):
            yield self.generator(self.latent.draw(min(_CHUNK, n - start), rng).to(units.dtype))


@dataclass(frozen=True)
class DensityPlan(PushforwardPlan):
    """The law of G(z), G a flow: one can also ask how likely a joint sample is.

    Samples and densities are those of the flow itself, solved adaptively, and densities are computed in float64.
    """

    @classmethod
    def of_flow(
        cls,
        network: InDataUnits,
        latent: Latent,
        cost: Cost,
        held_out: tuple[HeldOut | None, ...],
        facts: dict[str, Any],
    ) -> Self:
        """The plan of a flow as it was trained, with a warning if the solver of training was too coarse for it."""
        flow: Any = network.generator
        plan = cls(InDataUnits(flow.solved_by(Dopri5()), network.units).eval(), latent, cost, held_out, facts)
        error = plan._distance_from(network)
        facts["solver_error"] = error
        if error > _FAR:
            warnings.warn(
                f"the steps of training do not follow the flow they learned: samples are {error:.1%} of a standard "
                "deviation off. Densities are those of the exact flow, whose marginals were not trained. Give finer "
                "steps: generator=networks.ode.flow(solver=networks.solvers.RK4(16)).",
                stacklevel=2,
            )
        return plan

    @torch.no_grad()
    def log_density(self, *xs: Any, probes: int | None = None) -> Values:
        """log p(x_1, …, x_m) in data units, one number for each row.

        Args:
            xs: points of each marginal, arrays or tensors of equal length.
            probes: None for the exact trace, whose cost grows with the dimension; else so many random directions of
                Hutchinson's estimate.
        """
        flow, units = self._in_float64()
        us = units.from_data(self._points(xs))
        size = max(1, _DENSITY_CHUNK // (self.latent.dim * flow.width))
        rng = generator(Key(0, "probes"), us[0].device)
        parts = []
        for rows in zip(*(torch.split(u, size) for u in us), strict=True):
            drawn = None if probes is None else Probes(self.latent.dim, probes).draw(len(rows[0]), rng).movedim(1, 0)
            directions = None if drawn is None else drawn.double()
            parts.append(flow.log_density(rows, directions))
        return units.log_density(torch.cat(parts))

    @torch.no_grad()
    def inverse(self, *xs: Any) -> Tensor:
        """The noise z with G(z) = (x_1, …, x_m), one row for each."""
        flow, units = self._in_float64()
        return flow.inverse(units.from_data(self._points(xs)))

    def entropy(self, n: int = 20_000, seed: int = 0) -> Estimate:
        """−E log p from n draws, with its Monte-Carlo error."""
        values = -self.log_density(*self.sample(n, seed))
        return Estimate(float(values.mean()), float(values.std()) / math.sqrt(n))

    def marginal_density(self, i: int, x: Any) -> Values:
        """The density of marginal i (from 0) at these points: p integrated over the other marginals.

        By the trapezoidal rule on a grid, which is refined until the values settle; the other marginals may have at
        most two numbers together.
        """
        if not -len(self.shapes) <= i < len(self.shapes):
            raise InvalidArgument(f"the plan has marginals 0 to {len(self.shapes) - 1}, and {i} was asked for.")
        i %= len(self.shapes)
        points = _as_points(x, self.shapes[i], f"points of marginal {i}").to(self.generator.units.scale.device)
        others = [k for k in range(len(self.shapes)) if k != i]
        axes = sum(math.prod(self.shapes[k]) for k in others)
        if axes not in _NODES:
            raise InvalidArgument(
                f"marginal_density integrates over the other marginals, which have {axes} numbers together, and can do "
                "so over at most 2. Compare samples with the data instead: evaluation.audit(plan, X, Y)."
            )
        found = None
        for count in _NODES[axes]:
            before, found = found, self._integrated(i, points, others, count)
            if before is not None and float((found - before).abs().max()) <= _SETTLED * float(found.max()):
                return found
        assert found is not None
        warnings.warn(f"the quadrature of marginal {i} did not settle within {count} points an axis.", stacklevel=2)
        return found

    def _integrated(self, i: int, points: Tensor, others: Sequence[int], count: int) -> Values:
        """Σ_nodes p(x_i, nodes) · cell, the nodes a grid over where the other marginals live and some more."""
        seen = torch.cat(
            [x.flatten(1) for k, x in enumerate(self.sample(_RANGE, seed=0)) if k in others], dim=1
        ).double()
        low, high = seen.amin(0), seen.amax(0)
        margin = (high - low) / 4
        lines = [torch.linspace(float(a), float(b), count) for a, b in zip(low - margin, high + margin, strict=True)]
        nodes = torch.stack(torch.meshgrid(*lines, indexing="ij"), -1).reshape(-1, len(lines)).to(points)
        cell = math.prod(float(line[1] - line[0]) for line in lines)
        blocks = torch.split(nodes, [math.prod(self.shapes[k]) for k in others], dim=1)
        where = {k: block.reshape(-1, *self.shapes[k]) for k, block in zip(others, blocks, strict=True)}
        values = []
        for rows in torch.split(points, max(1, _CHUNK // len(nodes))):
            xs = [
                rows.repeat_interleave(len(nodes), 0)
                if k == i
                else where[k].repeat(len(rows), *[1] * len(self.shapes[k]))
                for k in range(len(self.shapes))
            ]
            values.append(self.log_density(*xs).exp().view(len(rows), -1).sum(1) * cell)
        return torch.cat(values)

    def _in_float64(self) -> tuple[Flow, Units]:
        units, flow = self.generator.units, copy.deepcopy(self.generator.generator).double()
        exact = Units(tuple(mean.double() for mean in units.means), float(units.scale), dtype=torch.float64)
        assert isinstance(flow, Flow)
        return flow.solved_by(_FINE), exact.to(units.scale.device)

    def _points(self, xs: Sequence[Any]) -> Samples:
        if len(xs) != len(self.shapes):
            raise InvalidArgument(f"the plan has {len(self.shapes)} marginals, and points of {len(xs)} were given.")
        device = self.generator.units.scale.device
        points = [
            _as_points(x, shape, f"argument {k + 1}") for k, (x, shape) in enumerate(zip(xs, self.shapes, strict=True))
        ]
        if len({len(x) for x in points}) != 1:
            raise InvalidArgument(
                f"a density is asked for row by row, and the arguments have {[len(x) for x in points]} rows."
            )
        return tuple(x.to(device) for x in points)

    @torch.no_grad()
    def _distance_from(self, network: InDataUnits) -> float:
        """Root mean square distance of samples from those of another solver, in standard deviations."""
        units = self.generator.units
        z = self.latent.draw(_COMPARED, generator(Key(0, "solver"), units.scale.device)).to(units.dtype)
        ours, theirs = (torch.cat([u.flatten(1) for u in g.standardised(z)], 1) for g in (self.generator, network))
        return float((ours - theirs).square().mean().sqrt() / ours.var(0).mean().sqrt())


@dataclass(frozen=True)
class PooledPlan:
    """Independent runs of one problem as one plan: each joint sample comes from one of them, all alike likely."""

    plans: tuple[PushforwardPlan, ...]

    def __post_init__(self) -> None:
        if len({(plan.shapes, plan.cost, plan.latent, type(plan.generator.generator)) for plan in self.plans}) != 1:
            raise InvalidArgument(
                "a pooled plan needs plans of the same problem: same shapes, cost, latent and network."
            )

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of one sample of each marginal."""
        return self.plans[0].shapes

    @property
    def cost(self) -> Cost:
        """The transport cost."""
        return self.plans[0].cost

    @property
    def held_out(self) -> tuple[HeldOut | None, ...]:
        """For each marginal, the rows that training did not see; None for a source without rows."""
        return self.plans[0].held_out

    @property
    def facts(self) -> dict[str, Any]:
        """How the plans were made."""
        return self.plans[0].facts | {"replicas": len(self.plans)}

    def sample(self, n: int, seed: int | None = None) -> Samples:
        """n joint samples: row k of all marginals belongs together. Without a seed, new ones each time."""
        if n < 1:
            raise InvalidArgument(f"sample(n) needs n >= 1, and got {n}.")
        rng = generator(Key(fresh_seed() if seed is None else seed, "pool"))
        run = torch.randint(len(self.plans), (n,), generator=rng)
        seeds = torch.randint(2**62, (len(self.plans),), generator=rng).tolist()
        counts = torch.bincount(run, minlength=len(self.plans)).tolist()
        drawn = [plan.sample(count, s) for plan, count, s in zip(self.plans, counts, seeds, strict=True) if count]
        place = run.argsort(stable=True).argsort()
        return tuple(torch.cat(parts)[place.to(parts[0].device)] for parts in zip(*drawn, strict=True))

    def expected_cost(self, n: int = 100_000, seed: int = 0) -> Estimate:
        """The mean of E c(G(z)) over the runs from n draws in all, with its Monte-Carlo error."""
        share = max(2, n // len(self.plans))
        each = self._each(share, seed)
        error = math.sqrt(math.fsum(e.monte_carlo_error**2 for e in each)) / len(each)
        return Estimate(math.fsum(e.value for e in each) / len(each), error)

    def spread(self, n: int = 20_000, seed: int = 0) -> float:
        """Standard deviation of E c(G(z)) over the runs, with the noise of measuring each by n draws taken off."""
        each = self._each(n, seed)
        noise = statistics.fmean(e.monte_carlo_error**2 for e in each)
        return math.sqrt(max(0.0, statistics.variance(e.value for e in each) - noise))

    def log_density(self, *xs: Any) -> Values:
        """The log of the mean density of the runs, where they have one."""
        each = torch.stack([plan.log_density(*xs) for plan in self._with_density()])
        return each.logsumexp(0) - math.log(len(each))

    def marginal_density(self, i: int, x: Any) -> Values:
        """The mean over the runs."""
        return torch.stack([plan.marginal_density(i, x) for plan in self._with_density()]).mean(0)

    def entropy(self, n: int = 20_000, seed: int = 0) -> Estimate:
        """−E log p from n draws, with its Monte-Carlo error."""
        values = -self.log_density(*self.sample(n, seed))
        return Estimate(float(values.mean()), float(values.std()) / math.sqrt(n))

    def _with_density(self) -> list[DensityPlan]:
        plans = [plan for plan in self.plans if isinstance(plan, DensityPlan)]
        if len(plans) < len(self.plans):
            raise InvalidArgument("this plan has no density. Fit one that has: EntropicSPOT(epsilon=…).fit(X, Y).")
        return plans

    def _each(self, n: int, seed: int) -> list[Estimate]:
        return [plan.expected_cost(n, seed + k) for k, plan in enumerate(self.plans)]

    def save(self, path: str | Path) -> Path:
        """Writes one file with all runs (safetensors with JSON in its header), atomically."""
        return _save(Path(path), self.plans)


def load(
    path: str | Path,
    *,
    generator: nn.Module | None = None,
    cost: Cost | None = None,
    latent: Latent | None = None,
) -> PushforwardPlan | PooledPlan:
    """Reads a plan (the file, or the folder of a run). No code is ever read from it.

    Args:
        path: what `save` wrote or the folder it is in.
        generator: an instance of your network, if the plan was fitted with one of your own.
        cost: your cost function, if the plan was fitted with one of your own.
        latent: your latent, likewise.
    """
    file = _file(Path(path))
    state = storage.read(file, _KIND, _VERSION)
    own = {"latent": latent, "cost": cost, "generator": generator}
    for name, given in own.items():
        if given is None and state.get(name) is None:
            raise InvalidArgument(
                f"{file} was fitted with a {name} of your own, and files hold no code. "
                f"Load it with torchspot.load({str(file)!r}, {name}=…)."
            )
    try:
        plans = tuple(_from_state(state, run, generator, cost, latent) for run in state["runs"])
        return plans[0] if len(plans) == 1 else PooledPlan(plans)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError, OverflowError) as error:
        if generator is not None:
            raise InvalidArgument(f"{file} does not fit the generator that was given: {error}") from error
        raise CorruptFile(f"{file} is damaged or hostile: {error}.") from error


def _save(path: Path, plans: tuple[PushforwardPlan, ...]) -> Path:
    """One file: what the plans have in common, then the network of each."""
    file, first = _file(path), plans[0]
    state = {
        "cost": costs.to_spec(first.cost),
        "latent": latents.to_spec(first.latent),
        "generator": to_spec(first.generator.generator),
        "dtype": str(first.generator.units.dtype).removeprefix("torch."),
        "held_out": [_held_out_state(rows) for rows in first.held_out],
        "runs": [_run_state(plan) for plan in plans],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    storage.write(file, _KIND, _VERSION, state)
    return file


def _run_state(plan: PushforwardPlan) -> dict[str, Any]:
    units, weights = plan.generator.units, plan.generator.generator.state_dict()
    return {"means": list(units.means), "scale": units.scale, "weights": weights, "facts": plan.facts}


def _from_state(
    state: dict[str, Any], run: dict[str, Any], network: nn.Module | None, cost: Cost | None, latent: Latent | None
) -> PushforwardPlan:
    dtype = {"float32": torch.float32, "float64": torch.float64}[state["dtype"]]
    units = Units(tuple(run["means"]), float(run["scale"]), dtype=dtype)
    if not all(torch.isfinite(t).all() for t in (*units.means, units.scale, *run["weights"].values())):
        raise ValueError("numbers that are not finite")
    latent = latents.from_spec(state["latent"]) if latent is None else latent
    cost = costs.from_spec(state["cost"]) if cost is None else cost
    if network is None:
        network = from_spec(state["generator"], Shapes(latent.dim, tuple(tuple(mean.shape) for mean in run["means"])))
        network.load_state_dict({name: weight.to(dtype) for name, weight in run["weights"].items()}, assign=True)
    else:
        network = copy.deepcopy(network)
        network.load_state_dict(run["weights"])
    plan = InDataUnits(network.requires_grad_(False), units).eval()
    held_out = tuple(_held_out_from(entry) for entry in state["held_out"])
    if isinstance(network, Flow):
        plan.generator = network.solved_by(Dopri5())
    kind = DensityPlan if isinstance(network, Flow) else PushforwardPlan
    return kind(plan, latent, cost, held_out, dict(run["facts"]))


def _as_points(x: Any, shape: tuple[int, ...], name: str) -> Tensor:
    """Points of this shape, in float64; a flat list of numbers will do where a sample is one number."""
    try:
        points = torch.as_tensor(np.asarray(x) if not isinstance(x, Tensor) else x.detach()).double()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument(f"{name} is no array of numbers ({error}).") from error
    if points.ndim == 1 and shape == (1,):
        points = points[:, None]
    if tuple(points.shape[1:]) != shape or points.ndim == 0:
        raise InvalidArgument(
            f"{name} must have shape (rows, {', '.join(map(str, shape))}), and has {tuple(points.shape)}."
        )
    if not torch.isfinite(points).all():
        raise InvalidArgument(f"{name} holds numbers that are not finite.")
    return points


def _held_out_state(rows: HeldOut | None) -> dict[str, Any] | None:
    return None if rows is None else {"fingerprint": rows.fingerprint, "rows": torch.from_numpy(np.array(rows.rows))}


def _held_out_from(entry: dict[str, Any] | None) -> HeldOut | None:
    if entry is None:
        return None
    rows: Tensor = entry["rows"]
    return HeldOut(str(entry["fingerprint"]), rows.numpy())


def _file(path: Path) -> Path:
    return path if path.suffix == ".safetensors" else path / FILE_NAME
