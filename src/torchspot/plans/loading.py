"""Plans back from their file."""

__all__ = ["load"]

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchspot import costs, latents, storage
from torchspot.data.arrays import HeldOut, Rows
from torchspot.data.sources import as_sampler
from torchspot.errors import CorruptFile, InvalidArgument
from torchspot.latents import Anchored, AnchoredDraws, Latent
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
        source: of a plan fitted with `latents.anchored`, the data set that it starts from (a tuple, if from several).
            Without it the plan can move points, but draws no samples of its own.
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
    try:
        held_out = tuple(_held_out_from(entry) for entry in state["held_out"])
        drawn = _Latents(latent or latents.from_spec(state["latent"]), held_out, source)
        plans = tuple(_from_state(state, run, generator, cost, drawn) for run in state["runs"])
        return pooled(plans)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError, OverflowError) as error:
        if isinstance(error, InvalidArgument):
            raise
        if generator is not None:
            raise InvalidArgument(f"{file} does not fit the generator that was given: {error}") from error
        raise CorruptFile(f"{file} is damaged or hostile: {error}.") from error


def _from_state(
    state: dict[str, Any], run: dict[str, Any], network: nn.Module | None, cost: Cost | None, drawn: "_Latents"
) -> PushforwardPlan:
    dtype = {"float32": torch.float32, "float64": torch.float64}[state["dtype"]]
    units = Units(tuple(run["means"]), float(run["scale"]), dtype=dtype)
    if not all(torch.isfinite(t).all() for t in (*units.means, units.scale, *run["weights"].values())):
        raise ValueError("numbers that are not finite")
    latent = drawn.of(units)
    cost = costs.from_spec(state["cost"]) if cost is None else cost
    if network is None:
        network = from_spec(state["generator"], Shapes(latent.dim, tuple(tuple(mean.shape) for mean in run["means"])))
        network.load_state_dict({name: weight.to(dtype) for name, weight in run["weights"].items()}, assign=True)
    else:
        network = copy.deepcopy(network)
        network.load_state_dict(run["weights"])
    plan = InDataUnits(network.requires_grad_(False), units).eval()
    facts = dict(run["facts"])
    if isinstance(latent, AnchoredDraws):
        support = tuple(Support(entry["rows"], float(entry["reach"])) for entry in state["support"])
        return ConditionalPlan(plan, latent, cost, drawn.held_out, facts, support)
    if isinstance(network, Flow):
        plan.generator = network.solved_by(Dopri5())
    kind = DensityPlan if isinstance(network, Flow) else PushforwardPlan
    return kind(plan, latent, cost, drawn.held_out, facts)


class _Latents:
    """What a loaded plan draws from; an anchored one from the data that is given, without the rows held out of it."""

    def __init__(self, kind: Latent | Anchored, held_out: tuple[HeldOut | None, ...], source: Any) -> None:
        self.kind, self.held_out = kind, held_out
        self._sources: tuple[Sampler, ...] = ()
        if source is None:
            return
        if not isinstance(kind, Anchored):
            raise InvalidArgument(
                "source= is for plans fitted with latents.anchored; this one draws noise. Leave it out."
            )
        given = source if isinstance(source, tuple) else (source,)
        if len(given) != len(kind.at):
            raise InvalidArgument(f"the plan starts from {len(kind.at)} data sets, and source= has {len(given)}.")
        self._sources = tuple(self._opened(one, a) for one, a in zip(given, kind.at, strict=True))

    def of(self, units: Units) -> Latent:
        """The latent of a network with these units."""
        if not isinstance(self.kind, Anchored):
            return self.kind
        means = tuple(units.means[a] for a in self.kind.at)
        for sampler, mean in zip(self._sources, means, strict=False):
            if sampler.shape != tuple(mean.shape):
                raise InvalidArgument(
                    f"source= has samples of shape {sampler.shape}, and the plan {tuple(mean.shape)}."
                )
        return AnchoredDraws(self.kind, means, units.scale, units.dtype, self._sources)

    def _opened(self, source: Any, anchor: int) -> Sampler:
        sampler, rows = as_sampler(source, name="source"), self.held_out[anchor]
        if isinstance(sampler, Rows) and rows is not None and rows.fingerprint == sampler.fingerprint():
            return sampler.excluding(rows.rows)
        return sampler


def _held_out_from(entry: dict[str, Any] | None) -> HeldOut | None:
    if entry is None:
        return None
    rows: Tensor = entry["rows"]
    return HeldOut(str(entry["fingerprint"]), rows.numpy())
