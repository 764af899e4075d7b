"""One call of `fit` under way: trained, measured, kept on disk, and turned into plans."""

__all__ = ["Run", "Weighing", "identity_of", "judge_of", "keep_in", "train_and_keep", "warn_unrepeatable", "watched_by"]

import contextlib
import copy
import re
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchspot.errors import Diverged, InvalidArgument
from torchspot.estimators.problem import Problem
from torchspot.latents import Latent
from torchspot.networks.anchored import AnchoredGenerator
from torchspot.networks.generators import InDataUnits
from torchspot.objectives.transport import MarginalWeights, Objective
from torchspot.plans import PooledPlan, PushforwardPlan, pooled
from torchspot.training.callbacks import Checkpoint, Divergence, History
from torchspot.training.checkpoint import load_checkpoint
from torchspot.training.loop import Training, train
from torchspot.training.ranks import Alone, Ranks, ranks_of
from torchspot.training.replicas import OverReplicas, replica
from torchspot.types import Callback, Engine, Record

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Of an object in this process's memory, in what it says of itself."""
_DATA = ("data", "labels")
"""What a run is told by that is of its data."""
_TOLD = ("seed", "batch size", "replicas", "number of processes")
"""What is shown where it differs."""


@dataclass(frozen=True)
class Run:
    """Everything one call of `fit` works with."""

    problem: Problem
    objective: Objective
    """Of the first replica, whose modules stand for those of all."""
    weighing: "Weighing"
    latent: Latent
    training: Training
    engine: Engine
    history: History
    callbacks: tuple[Callback, ...]
    judge: Callable[[], Tensor]
    """The objective's numbers and the marginal errors now, of each replica where there are several."""
    replicas: int
    seed: int
    make_plan: Callable[..., PushforwardPlan]
    facts: dict[str, Any]
    """What plans say of the method."""

    @property
    def log_every(self) -> int:
        """At least 20 logs, at most 100 steps apart."""
        return max(1, min(100, self.training.planned // 20))

    def go(self) -> None:
        """Trains to the end."""
        train(
            self.training,
            engine=self.engine,
            callbacks=self.callbacks,
            measure=self.measure,
            log_every=self.log_every,
        )

    @torch.no_grad()
    def measure(self) -> Record:
        """The objective's numbers and marginal errors of the averaged generator, on what training never draws.

        With several replicas: the means, and what each of them has.
        """
        runs = self.judge().view(self.replicas, -1).tolist()
        names = self.objective.names
        means = [sum(column) / len(runs) for column in zip(*runs, strict=True)]
        errors = means[len(names) :]
        record: Record = dict(zip(names, means, strict=False)) | {"marginal_error": max(errors)}
        record |= {f"marginal_error_{k + 1}": error for k, error in enumerate(errors)}
        if self.replicas > 1:
            costs_of_runs = [run[0] for run in runs]
            record["cost_spread"] = statistics.stdev(costs_of_runs)
            record["runs"] = {"cost": costs_of_runs, "marginal_error": [max(run[len(names) :]) for run in runs]}
        return record

    def plan(self) -> PushforwardPlan | PooledPlan:
        """The plan as it stands, of all replicas together."""
        return pooled(self.plans())

    @property
    def lipschitz(self) -> tuple[float, ...]:
        """L_i, as far as is known: what the usual slack makes of η where η was given; 0 where η is no slope."""
        started = self.weighing.started
        if self.facts.get("critics") == "logistic":
            return (0.0,) * len(started.eta)
        return started.lipschitz or tuple(eta / started.slack for eta in started.eta)

    @property
    def doublings(self) -> list[int]:
        """How often the η of each marginal was doubled."""
        return self.weighing.doublings

    def double(self, k: int) -> float:
        """Doubles η_k from the next step on, and gives the new one."""
        return self.weighing.double(k)

    def plans(self) -> tuple[PushforwardPlan, ...]:
        """Those of the averaged generators as they stand, one for each replica."""
        return tuple(map(self._plan, range(self.replicas)))

    def critics(self, k: int) -> nn.Module:
        """As they stand, of replica k."""
        critics = self.training.turns[0].player.modules[0]
        return critics if self.replicas == 1 else replica(critics, self.objective.critics, k)

    def _plan(self, k: int) -> PushforwardPlan:
        weights = self.weighing.now
        facts = {
            "eta": list(weights.eta),
            "lipschitz": None if weights.lipschitz is None else list(weights.lipschitz),
            "lipschitz_source": weights.source,
            "steps": self.training.step,
            "stopped": self.training.stop_reason,
            "seed": int(self.seed),
            "replica": k,
            "engine": _how_it_ran(self.training, self.engine),
            **self.facts,
        }
        network: Any = self.training.averaged("generator")[0]
        if self.replicas > 1:
            network = replica(network, self.objective.generator, k).requires_grad_(False)
        return self.make_plan(network.eval(), self.latent, self.objective.cost, self.problem.held_out, facts)


def judge_of(
    problem: Problem, objective: Objective, training: Training, batch: tuple[Tensor, ...], replicas: int
) -> Callable[[], Tensor]:
    """Measures the averaged generator, on this noise, and the critics as they stand."""

    def numbers(generator: InDataUnits) -> Tensor:
        us, measured = objective.judged(generator, batch, problem.judges)
        network = generator.generator
        made = network.made(us) if isinstance(network, AnchoredGenerator) else us
        return torch.cat((measured, problem.marginal_errors(made)))

    def averaged() -> Any:
        return training.averaged("generator")[0]

    if replicas == 1:
        return lambda: numbers(averaged())
    template = copy.deepcopy(objective.generator).eval()
    of_all = OverReplicas(
        lambda: numbers(template),
        nn.ModuleList((template, objective.critics)),
        nn.ModuleList((averaged(), training.turns[0].player.modules[0])),
        name="what is measured at logged steps",
    )

    def numbers_of_all() -> Tensor:
        averaged()  # its buffers up to date
        return of_all()

    return numbers_of_all


class Weighing:
    """η of a run under way: it may be doubled, and the checkpoint remembers it."""

    def __init__(self, started: MarginalWeights, eta: Tensor) -> None:
        self.started, self._eta = started, eta
        self.doublings = [0] * len(eta)

    @property
    def now(self) -> MarginalWeights:
        """η as it is, and where it came from."""
        eta = tuple(e * 2**k for e, k in zip(self.started.eta, self.doublings, strict=True))
        source = self.started.source + (", doubled" if any(self.doublings) else "")
        return replace(self.started, eta=eta, source=source)

    def double(self, k: int) -> float:
        """Doubles η_k where the losses read it, and gives the new one."""
        self._eta[k].mul_(2)
        self.doublings[k] += 1
        return self.now.eta[k]

    def state_dict(self) -> dict[str, Any]:
        return {"doublings": self.doublings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for k, times in enumerate(state["doublings"]):
            self._eta[k].mul_(2.0 ** (times - self.doublings[k]))
        self.doublings = list(state["doublings"])


class _Identity:
    """Goes into the checkpoint, so that a run is resumed only as what it began."""

    def __init__(self, facts: dict[str, Any], folder: Path) -> None:
        self.facts, self.folder = facts, folder

    def state_dict(self) -> dict[str, Any]:
        return self.facts

    def load_state_dict(self, state: dict[str, Any]) -> None:
        differing = [name for name, value in self.facts.items() if state.get(name) != value]
        of_data = [name for name in differing if name in _DATA]
        if differing:
            differing = of_data or differing  # other data have other marginal weights, say
            told = {name: f" ({state.get(name)}, not {self.facts[name]})" for name in differing if name in _TOLD}
            named = " and ".join(name + told.get(name, "") for name in differing)
            raise InvalidArgument(
                f"the run in {self.folder} was begun with other {named}. "
                "Resume it with the same, or start a new run in another folder."
            )


def watched_by(estimator: Any, folder: Path | None, ranks: Alone | Ranks) -> tuple[History, tuple[Any, ...]]:
    """The history of a run, which the first of several processes writes, and all that is called at its logged steps."""
    kept = ranks.gather(folder is not None)
    if any(kept) and not all(kept):
        raise InvalidArgument(
            f"process {kept.index(True)} of 0 to {ranks.count - 1} was given a folder to resume= and process "
            f"{kept.index(False)} none. Give all of them the same; only the first one writes."
        )
    history = History(None if folder is None or ranks.rank > 0 else folder / "history.jsonl")
    return history, (Divergence(folder), *estimator.callbacks, history)


def identity_of(facts: dict[str, Any], ranks: Alone | Ranks) -> dict[str, Any]:
    """What must be the same for a run to be resumed, and in all its processes but for the data, which may be parts."""
    facts = {name: _ADDRESS.sub("", fact) if isinstance(fact, str) else fact for name, fact in facts.items()}
    of_all = ranks.gather(facts)
    for rank, other in enumerate(of_all):
        differing = [name for name in facts if name not in _DATA and other[name] != of_all[0][name]]
        if differing:
            raise InvalidArgument(
                f"process {rank} of 0 to {ranks.count - 1} has other {' and '.join(differing)} than the first. "
                "Processes that train together must fit the same: only rows may differ."
            )
    of_data = {name: [one[name] for one in of_all] for name in _DATA if name in facts}
    together = {name: parts[0] if parts == parts[:1] * len(parts) else parts for name, parts in of_data.items()}
    return facts | together | {"number of processes": ranks.count}


def keep_in(
    folder: Path, training: Training, callbacks: Sequence[Any], identity: dict[str, Any], ranks: Alone | Ranks
) -> tuple[Any, ...]:
    """Continues from the folder's checkpoint if there is one; the callbacks, of which the last keeps one there."""
    kept = (c for c in callbacks if isinstance(c, Checkpoint) and c.folder.resolve() == folder.resolve())
    checkpoint = next(kept, None) or Checkpoint(folder)
    others = tuple(c for c in callbacks if c is not checkpoint)
    checkpoint.companions = (_Identity(identity, folder), *others)
    ranks.in_turn(lambda: load_checkpoint(folder, training, checkpoint.companions))
    return (*others, checkpoint)


def train_and_keep(go: Callable[[], None], keep: Callable[[], Any]) -> None:
    """Keeps what was learned, also where Ctrl-C stops it, unless the state has diverged by then."""
    try:
        go()
    except KeyboardInterrupt:
        with contextlib.suppress(Diverged):
            keep()
        raise
    keep()


def warn_unrepeatable(names: Sequence[str]) -> None:
    """Of data sets that a resumed run cannot draw again as it did."""
    for name in names:
        warnings.warn(
            f"{name} does not give the same samples when it is drawn again: a resumed run will go on, but not bit for "
            "bit. Rows do, and a function that takes generator=.",
            stacklevel=5,
        )


def _how_it_ran(training: Training, engine: Engine) -> str:
    """In words: the engine of each player, where they differ, and the device."""
    ways = training.ran or {"": "under way"}
    same = len(set(ways.values())) == 1
    said = next(iter(ways.values())) if same else "; ".join(f"{name}: {how}" for name, how in ways.items())
    count = ranks_of(engine).count
    return f"{said} on {engine.device}" + (f", {count} processes" if count > 1 else "")
