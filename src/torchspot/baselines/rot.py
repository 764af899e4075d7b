"""ROT: regularised optimal transport by potential networks, and its barycentric map."""

__all__ = ["ROT", "MappedPlan"]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from torchspot import costs
from torchspot.data.sources import as_sampler
from torchspot.errors import InvalidArgument
from torchspot.networks.mlp import mlp
from torchspot.objectives.regularised import Entropy, Potentials, Regularisation, RegularisedDual
from torchspot.random import Key, fresh_seed, generator
from torchspot.training.callbacks import Divergence, History
from torchspot.training.engine import engine_for
from torchspot.training.loop import Training, train
from torchspot.training.optimizers import Adam
from torchspot.training.players import Draw, Player, Stream
from torchspot.training.ranks import ranks_of
from torchspot.training.replicas import OverReplicas, replica, stacked
from torchspot.types import Callback, Cost, Engine, Estimate, Record, Sampler, Samples

_HIDDEN = (128, 256, 128)
_BLOCKS, _LARGEST_BLOCK, _PAIRED_NUMBERS = 32, 512, 1 << 24
"""Blocks of samples to judge by, rows of one, and numbers in all pairs of its rows."""
"""Samples for the last values, and in a block whose pairs are all looked at."""


class ROT(BaseEstimator):
    """Maximises the regularised dual over two networks, and learns the barycentric map of its plan along with them.

    Args:
        cost: function of one batch of each marginal that gives one number a row.
        regularisation: `Entropy()` or `Quadratic()`.
        epsilon: how strong it is; several run together, each with all replicas.
        learning_rate: Adam's.
        steps: of both players.
        batch_size: samples of each marginal a step; all their pairs count.
        replicas: independent runs for each ε.
        seed: of everything random.
        engine: where and how to train; if None, `Captured()` on a GPU and `Eager()` without one.
        callbacks: called at logged steps.

    After `fit`: `duals_` (what the paper compares with), `plan_costs_` (what the regularised plan costs) and `plans_`
    (x, T(x)), one for each run, ε by ε; `history_`.
    """

    def __init__(
        self,
        *,
        cost: Cost = costs.euclidean,
        regularisation: Regularisation = Entropy(),  # noqa: B008
        epsilon: float | Sequence[float] = 0.1,
        learning_rate: float = 1e-3,
        steps: int = 10_000,
        batch_size: int = 100,
        replicas: int = 1,
        seed: int = 0,
        engine: Engine | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.cost = cost
        self.regularisation = regularisation
        self.epsilon = epsilon
        self.learning_rate = learning_rate
        self.steps = steps
        self.batch_size = batch_size
        self.replicas = replicas
        self.seed = seed
        self.engine = engine
        self.callbacks = callbacks

    def fit(self, X: Any, Y: Any) -> "ROT":
        """Learns potentials and map between two data sets; anything `torchspot.data.as_sampler` takes."""
        epsilons = [self.epsilon] if isinstance(self.epsilon, (int, float)) else list(self.epsilon)
        if not epsilons or not all(epsilon > 0 for epsilon in epsilons) or self.replicas < 1:
            raise InvalidArgument(
                f"ROT needs epsilon > 0 and replicas >= 1, and got {self.epsilon!r} and {self.replicas!r}."
            )
        engine = engine_for(self.engine)
        samplers = [_on(engine, as_sampler(data, name=f"data set {k + 1}")) for k, data in enumerate((X, Y))]
        if any(len(sampler.shape) != 1 for sampler in samplers):
            raise InvalidArgument(
                f"ROT takes rows of numbers, and got samples of shapes {[sampler.shape for sampler in samplers]}. "
                "Flatten each sample into one row."
            )
        objectives = [
            self._objective(samplers, engine, epsilon, r) for epsilon in epsilons for r in range(self.replicas)
        ]
        games = [self._players(objective, samplers, engine, len(objectives)) for objective in objectives]
        training = Training(stacked(games), self.steps)
        rows = min(_LARGEST_BLOCK, math.isqrt(_PAIRED_NUMBERS // samplers[0].shape[0]))
        judges = Draw(Key(self.seed, "judges"), *self._streams(samplers, engine, _BLOCKS * rows), device=engine.device)
        measure = _measure_of(objectives[0], training, judges, len(objectives), rows)
        history = History()
        train(
            training,
            engine=engine,
            callbacks=(Divergence(), *self.callbacks, history),
            measure=measure,
            log_every=max(1, min(100, self.steps // 20)),
        )
        self.history_ = history.records
        final = measure(_BLOCKS)["runs"]
        self.duals_, self.plan_costs_ = final["cost"], final["plan_cost"]
        maps = training.turns[1].player.modules[0]
        self.plans_ = [
            MappedPlan(samplers[0], replica(maps, objectives[0].transport, k), self.cost)
            for k in range(len(objectives))
        ]
        return self

    def _objective(self, samplers: Sequence[Sampler], engine: Engine, epsilon: float, run: int) -> RegularisedDual:
        rng = generator(Key(self.seed, "potentials", replica=run))
        x, y = (math.prod(sampler.shape) for sampler in samplers)
        u, v, transport = (
            _network(inputs, outputs, rng).to(engine.device, engine.dtype)
            for inputs, outputs in ((x, 1), (y, 1), (x, y))
        )
        potentials = Potentials(u, v, epsilon).to(engine.device, engine.dtype)
        return RegularisedDual(potentials, transport, self.cost, self.regularisation)

    def _streams(self, samplers: Sequence[Sampler], engine: Engine, size: int) -> list[Stream]:
        return [Stream(sampler, size, engine.dtype) for sampler in samplers]

    def _players(
        self, objective: RegularisedDual, samplers: Sequence[Sampler], engine: Engine, runs: int
    ) -> list[Player]:
        streams = self._streams(samplers, engine, self.batch_size)

        def player(name: str, module: nn.Module, loss: Any) -> Player:
            draw = Draw(Key(self.seed, name, ranks_of(engine).rank), *streams, device=engine.device, replicas=runs)
            return Player(name, (module,), Adam(self.learning_rate), draw, loss)

        return [
            player("potentials", objective.potentials, objective.dual_loss),
            player("map", objective.transport, objective.map_loss),
        ]


@dataclass(frozen=True)
class MappedPlan:
    """(x, T(x)) with x from the data: the plan of a map."""

    source: Sampler
    transport: nn.Module
    cost: Cost

    @torch.no_grad()
    def sample(self, n: int, seed: int | None = None) -> Samples:
        """n samples of the source and where the map takes them. Without a seed, new ones each time."""
        rng = generator(Key(fresh_seed() if seed is None else seed, "sample"), self.source.device)
        x = self.source.draw(n, rng).to(next(self.transport.parameters()))
        return x, self.transport(x)

    @torch.no_grad()
    def moved(self, points: Any) -> Float[np.ndarray, "rows dim"]:
        """Where the map takes these points."""
        first = next(self.transport.parameters())
        parts = torch.split(torch.as_tensor(points), 1 << 14)
        return torch.cat([self.transport(part.to(first)).cpu() for part in parts]).numpy()

    def expected_cost(self, n: int = 100_000, seed: int = 0) -> Estimate:
        """E c(x, T(x)) from n draws."""
        values = self.cost(*self.sample(n, seed)).double()
        return Estimate(float(values.mean()), float(values.std()) / math.sqrt(n))


def _network(inputs: int, outputs: int, rng: torch.Generator) -> nn.Module:
    return mlp([inputs, *_HIDDEN, outputs], rng, activation=nn.ReLU)


def _on(engine: Engine, sampler: Any) -> Sampler:
    return sampler.to(engine.device, engine.dtype) if hasattr(sampler, "to") else sampler


def _measure_of(
    objective: RegularisedDual, training: Training, judges: Draw, runs: int, rows: int
) -> Callable[..., Record]:
    """Dual and cost of the plan now, of all runs, over blocks of samples."""

    def numbers(batch: tuple[Tensor, ...]) -> Float[Tensor, " 2"]:
        return torch.stack((objective.value(*batch), objective.plan_cost(*batch)))

    of_all = OverReplicas(
        numbers,
        nn.ModuleList((objective.potentials, objective.transport)),
        nn.ModuleList(module for turn in training.turns for module in turn.player.modules),
        name="what is measured at logged steps",
    )

    judges.advance()
    same = tuple(part.expand(runs, *part.shape) for part in judges())

    @torch.no_grad()
    def measure(count: int = 1) -> Record:
        blocks = zip(*(torch.split(part[:, : count * rows], rows, dim=1) for part in same), strict=True)
        duals, plan_costs = torch.stack([of_all(block) for block in blocks]).double().mean(0).T.tolist()
        return {"cost": sum(duals) / len(duals), "runs": {"cost": duals, "plan_cost": plan_costs}}

    return measure
