"""What solvers return and judges take: plans one can draw from, save and load."""

__all__ = ["PooledPlan", "PushforwardPlan", "load"]

import copy
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchspot import costs, latents, storage
from torchspot.data.arrays import HeldOut
from torchspot.errors import CorruptFile, InvalidArgument
from torchspot.latents import Latent
from torchspot.networks.generators import InDataUnits, Shapes, Units, from_spec, to_spec
from torchspot.random import Key, fresh_seed, generator
from torchspot.types import Cost, Estimate, Samples

FILE_NAME = "plan.safetensors"

_KIND, _VERSION = "pushforward plan", 2
_CHUNK = 1 << 16


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
    return PushforwardPlan(plan, latent, cost, held_out, dict(run["facts"]))


def _held_out_state(rows: HeldOut | None) -> dict[str, Any] | None:
    return None if rows is None else {"fingerprint": rows.fingerprint, "rows": torch.from_numpy(np.array(rows.rows))}


def _held_out_from(entry: dict[str, Any] | None) -> HeldOut | None:
    if entry is None:
        return None
    rows: Tensor = entry["rows"]
    return HeldOut(str(entry["fingerprint"]), rows.numpy())


def _file(path: Path) -> Path:
    return path if path.suffix == ".safetensors" else path / FILE_NAME
