"""Plans back from their file."""

__all__ = ["load"]

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchspot import costs, latents, storage
from torchspot.data.arrays import HeldOut
from torchspot.errors import CorruptFile, InvalidArgument
from torchspot.latents import Latent
from torchspot.networks.generators import InDataUnits, Shapes, Units
from torchspot.networks.ode import Flow
from torchspot.networks.solvers import Dopri5
from torchspot.networks.specification import from_spec
from torchspot.plans.density import DensityPlan
from torchspot.plans.pooled import PooledPlan, pooled
from torchspot.plans.pushforward import PushforwardPlan
from torchspot.plans.saving import KIND, VERSION, plan_file
from torchspot.types import Cost


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
        plans = tuple(_from_state(state, run, generator, cost, latent) for run in state["runs"])
        return pooled(plans)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RuntimeError, OverflowError) as error:
        if generator is not None:
            raise InvalidArgument(f"{file} does not fit the generator that was given: {error}") from error
        raise CorruptFile(f"{file} is damaged or hostile: {error}.") from error


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


def _held_out_from(entry: dict[str, Any] | None) -> HeldOut | None:
    if entry is None:
        return None
    rows: Tensor = entry["rows"]
    return HeldOut(str(entry["fingerprint"]), rows.numpy())
