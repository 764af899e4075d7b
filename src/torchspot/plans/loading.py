"""Plans back from their file."""

__all__ = ["load"]

import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchspot import costs, latents, storage
from torchspot.data.arrays import HeldOut, Rows
from torchspot.data.sources import as_sampler
from torchspot.errors import CorruptFile, InvalidArgument
from torchspot.latents import Anchored, AnchoredDraws, Latent
from torchspot.networks.anchored import AnchoredGenerator
from torchspot.networks.generators import InDataUnits, Shapes, Units
from torchspot.networks.ode import Flow
from torchspot.networks.solvers import Dopri5
from torchspot.networks.specification import from_spec
from torchspot.plans.conditional import ConditionalPlan
from torchspot.plans.density import DensityPlan
from torchspot.plans.pooled import PooledPlan, pooled
from torchspot.plans.pushforward import PushforwardPlan
from torchspot.plans.saving import KIND, VERSION, plan_file
from torchspot.plans.support import Support
from torchspot.types import Cost, Sampler

_SAID = 500
"""So many letters of an error are shown: a hostile file may make it very long."""


def load(
    path: str | Path,
    *,
    generator: nn.Module | None = None,
    cost: Cost | None = None,
    latent: Latent | None = None,
    source: Any = None,
) -> PushforwardPlan | PooledPlan:
    """Reads a plan (the file, or the folder of a run). No code is ever read from it.

    Args:
        path: what `save` wrote or the folder it is in.
        generator: an instance of your network, if the plan was fitted with one of your own.
        cost: your cost function, if the plan was fitted with one of your own.
        latent: your latent, likewise.
        source: of a plan fitted with `latents.anchored`, the data set that it starts from (a tuple, if from several;
            with weights as `torchspot.data.as_sampler(X, weights=w)`). Without it the plan can move points, but draws
            no samples of its own.
    """
    file = plan_file(Path(path))
    state = storage.read(file, KIND, VERSION)
    own = {"latent": latent, "cost": cost, "generator": generator}
    for name, given in own.items():
        if given is None and state.get(name) is None:
            raise InvalidArgument(
                f"{file} was fitted with a {name} of your own, and files hold no code. "
                f"Load it with torchspot.load({str(file)!r}, {name}=…)."
            )
    with _refusing_what_does_not_fit(file, generator):
        held_out = tuple(_held_out_from(entry) for entry in state["held_out"])
        kind = latent or latents.from_spec(state["latent"])
        means = state["runs"][0]["means"]
        if len(held_out) not in (0, len(means)) or (isinstance(kind, Anchored) and max(kind.at) >= len(means)):
            raise ValueError("numbers of marginals that differ")
    sources = () if source is None else _opened(source, kind, held_out, means)
    with _refusing_what_does_not_fit(file, generator):
        read = _Read(state, kind, held_out, sources)
        return pooled(tuple(read.plan(run, generator, cost) for run in state["runs"]))


@contextmanager
def _refusing_what_does_not_fit(file: Path, generator: nn.Module | None) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError, OverflowError) as error:
        said = str(error)[:_SAID]
        if generator is not None:
            raise InvalidArgument(f"{file} does not fit the generator that was given: {said}") from error
        raise CorruptFile(f"{file} is damaged or hostile: {said}.") from error


@dataclass(frozen=True)
class _Read:
    """What the plans of a file share."""

    state: dict[str, Any]
    kind: Latent | Anchored
    held_out: tuple[HeldOut | None, ...]
    sources: tuple[Sampler, ...]

    def plan(self, run: dict[str, Any], network: nn.Module | None, cost: Cost | None) -> PushforwardPlan:
        """The plan of one run."""
        dtype = {"float32": torch.float32, "float64": torch.float64}[self.state["dtype"]]
        units = Units(tuple(run["means"]), _scale(run), dtype=dtype)
        if not all(torch.isfinite(t).all() for t in (*units.means, units.scale, *run["weights"].values())):
            raise ValueError("numbers that are not finite")
        latent = self._latent(units)
        cost = costs.from_spec(self.state["cost"]) if cost is None else cost
        shapes = Shapes(latent.dim, tuple(tuple(mean.shape) for mean in run["means"]))
        if network is None:
            network = from_spec(self.state["generator"], shapes)
            network.load_state_dict({name: weight.to(dtype) for name, weight in run["weights"].items()}, assign=True)
        else:
            network = self._own(network, shapes)
            network.load_state_dict(run["weights"])
        if (network.at if isinstance(network, AnchoredGenerator) else None) != self._at:
            raise ValueError("a network and a latent that start from different marginals")
        plan = InDataUnits(network.requires_grad_(False), units).eval()
        facts = dict(run["facts"])
        if isinstance(latent, AnchoredDraws):
            return ConditionalPlan(plan, latent, cost, self.held_out, facts, self._support(shapes))
        if isinstance(network, Flow):
            plan.generator = network.solved_by(Dopri5())
        kind = DensityPlan if isinstance(network, Flow) else PushforwardPlan
        return kind(plan, latent, cost, self.held_out, facts)

    @property
    def _at(self) -> tuple[int, ...] | None:
        return self.kind.at if isinstance(self.kind, Anchored) else None

    def _own(self, network: nn.Module, shapes: Shapes) -> nn.Module:
        """A copy of the user's network; of an anchored plan, one for each anchor."""
        if self._at is None or isinstance(network, AnchoredGenerator):
            return copy.deepcopy(network)
        return AnchoredGenerator([copy.deepcopy(network) for _ in self._at], shapes, self._at)

    def _support(self, shapes: Shapes) -> tuple[Support, ...]:
        """Where the data of each anchor lies; nothing if the plan was saved without it."""
        found = tuple(Support(entry["rows"], float(entry["reach"])) for entry in self.state["support"])
        for one, anchor in zip(found, self._at or (), strict=True) if found else ():
            fits = one.rows.ndim == 2 and len(one.rows) > 0 and one.rows.shape[1] == shapes.sizes[anchor]
            if not (fits and one.rows.is_floating_point() and bool(torch.isfinite(one.rows).all())):
                raise ValueError("rows of the data that do not fit")
            if not (math.isfinite(one.reach) and one.reach > 0):
                raise ValueError(f"a reach of {one.reach}")
        return found

    def _latent(self, units: Units) -> Latent:
        """What a network with these units draws from."""
        if not isinstance(self.kind, Anchored):
            return self.kind
        means = tuple(units.means[a] for a in self.kind.at)
        return AnchoredDraws(self.kind, means, units.scale, units.dtype, self.sources)


def _opened(
    source: Any, kind: Latent | Anchored, held_out: Sequence[HeldOut | None], means: Sequence[Tensor]
) -> tuple[Sampler, ...]:
    """The data that an anchored plan draws from, without the rows that were held out of it."""
    if not isinstance(kind, Anchored):
        raise InvalidArgument("source= is for plans fitted with latents.anchored; this one draws noise. Leave it out.")
    given = source if isinstance(source, tuple) else (source,)
    if len(given) != len(kind.at):
        raise InvalidArgument(f"the plan starts from {len(kind.at)} data sets, and source= has {len(given)}.")
    opened: list[Sampler] = []
    for one, anchor in zip(given, kind.at, strict=True):
        sampler, rows, shape = (
            as_sampler(one, name="source"),
            held_out[anchor] if held_out else None,
            tuple(means[anchor].shape),
        )
        if sampler.shape != shape:
            raise InvalidArgument(f"source= has samples of shape {sampler.shape}, and the plan {shape}.")
        if isinstance(sampler, Rows) and rows is not None:
            if rows.fingerprint == sampler.fingerprint():
                sampler = sampler.excluding(rows.rows)
            else:
                warnings.warn(
                    "source= is not the data that the plan was fitted with, or has other weights: samples start from "
                    "all of its rows. For weights give torchspot.data.as_sampler(X, weights=w).",
                    stacklevel=3,
                )
        opened.append(sampler)
    return tuple(opened)


def _scale(run: dict[str, Any]) -> Tensor:
    """One number, or one for each coordinate of samples that all have one shape."""
    scale: Tensor = run["scale"]
    if scale.ndim and any(mean.shape != scale.shape for mean in run["means"]):
        raise ValueError("a scale that does not fit")
    return scale


def _held_out_from(entry: dict[str, Any] | None) -> HeldOut | None:
    if entry is None:
        return None
    rows: Tensor = entry["rows"]
    return HeldOut(str(entry["fingerprint"]), rows.numpy())
