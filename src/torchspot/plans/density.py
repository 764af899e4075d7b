"""The plan of a flow, whose density is known."""

__all__ = ["DensityPlan", "entropy_of"]

import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from torchspot.data.arrays import HeldOut
from torchspot.data.points import as_points
from torchspot.errors import InvalidArgument
from torchspot.latents import Latent
from torchspot.networks.generators import InDataUnits, Units
from torchspot.networks.ode import Flow, Probes
from torchspot.networks.solvers import Dopri5
from torchspot.plans.pushforward import PushforwardPlan
from torchspot.random import Key, generator
from torchspot.types import Cost, Estimate, Samples, Values

_CHUNK = 1 << 16
_DENSITY_CHUNK = 1 << 21
_COMPARED, _FAR = 2048, 0.01
_NODES = {1: (257, 513, 1025, 2049, 4097), 2: (65, 129, 257, 513)}
"""Points of a quadrature along each axis, more and more until nothing changes, by the number of axes."""
_RANGE, _SETTLED = 20_000, 1e-4


@dataclass(frozen=True, repr=False)
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
        rng = generator(Key(0, "probes"), units.scale.device)

        def directions(rows: int) -> Tensor | None:
            drawn = None if probes is None else Probes(self.latent.dim, probes).draw(rows, rng)
            return None if drawn is None else drawn.movedim(1, 0).double()

        parts = [flow.log_density(us, directions(len(us[0]))) for us in self._chunks(flow, units, xs)]
        return units.log_density(torch.cat(parts))

    @torch.no_grad()
    def inverse(self, *xs: Any) -> Tensor:
        """The noise z with G(z) = (x_1, …, x_m), one row for each."""
        flow, units = self._in_float64()
        return torch.cat([flow.inverse(us) for us in self._chunks(flow, units, xs)])

    def entropy(self, n: int = 20_000, seed: int = 0) -> Estimate:
        """−E log p from n draws, with its Monte-Carlo error."""
        return entropy_of(self, n, seed)

    def marginal_density(self, i: int, x: Any) -> Values:
        """The density of marginal i (from 0) at these points: p integrated over the other marginals.

        By the trapezoidal rule on a grid, which is refined until the values settle; the other marginals may have at
        most two numbers together.
        """
        if not -len(self.shapes) <= i < len(self.shapes):
            raise InvalidArgument(f"the plan has marginals 0 to {len(self.shapes) - 1}, and {i} was asked for.")
        i %= len(self.shapes)
        points = as_points(x, self.shapes[i], f"points of marginal {i}").to(self.generator.units.scale.device)
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
        ends = zip((low - margin).tolist(), (high + margin).tolist(), strict=True)
        lines = [torch.linspace(a, b, count, dtype=torch.float64) for a, b in ends]
        nodes = torch.stack(torch.meshgrid(*lines, indexing="ij"), -1).reshape(-1, len(lines)).to(points)
        cell = float((1.5 * (high - low) / (count - 1)).prod())
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

    def _chunks(self, flow: Flow, units: Units, xs: Sequence[Any]) -> Iterator[Samples]:
        """The points, standardised, some rows at a time."""
        size = max(1, _DENSITY_CHUNK // (self.latent.dim * flow.width))
        return zip(*(torch.split(u, size) for u in units.from_data(self._points(xs))), strict=True)

    def _in_float64(self) -> tuple[Flow, Units]:
        units, flow = self.generator.units, copy.deepcopy(self.generator.generator).double()
        exact = Units(tuple(mean.double() for mean in units.means), float(units.scale), dtype=torch.float64)
        assert isinstance(flow, Flow)
        return flow, exact.to(units.scale.device)

    def _points(self, xs: Sequence[Any]) -> Samples:
        if len(xs) != len(self.shapes):
            raise InvalidArgument(f"the plan has {len(self.shapes)} marginals, and points of {len(xs)} were given.")
        device = self.generator.units.scale.device
        points = [
            as_points(x, shape, f"argument {k + 1}") for k, (x, shape) in enumerate(zip(xs, self.shapes, strict=True))
        ]
        if len({len(x) for x in points}) != 1:
            raise InvalidArgument(
                f"row k of all arguments is a point, and they have {[len(x) for x in points]} rows. Give as many each."
            )
        return tuple(x.to(device) for x in points)

    @torch.no_grad()
    def _distance_from(self, network: InDataUnits) -> float:
        """Root mean square distance of samples from those of another solver, in standard deviations."""
        units = self.generator.units
        z = self.latent.draw(_COMPARED, generator(Key(0, "solver"), units.scale.device)).to(units.dtype)
        ours, theirs = (torch.cat([u.flatten(1) for u in g.standardised(z)], 1) for g in (self.generator, network))
        return float((ours - theirs).square().mean().sqrt() / ours.var(0).mean().sqrt())


def entropy_of(plan: Any, n: int, seed: int) -> Estimate:
    """−E log p of a plan that has a density."""
    if n < 2:
        raise InvalidArgument(f"entropy(n) needs n >= 2, and got {n}.")
    values = -plan.log_density(*plan.sample(n, seed))
    return Estimate(float(values.mean()), float(values.std()) / math.sqrt(n))
