"""What estimators that learn a push-forward share: `fit`, and how a run is prepared."""

__all__ = ["Distance", "Game", "PushforwardEstimator"]

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import nn

from torchspot import costs
from torchspot.errors import InvalidArgument, NotFitted
from torchspot.estimators.networks import Builder, build_critics, build_generator
from torchspot.estimators.presets import Preset
from torchspot.estimators.problem import Problem, pose
from torchspot.estimators.run import (
    Run,
    Weighing,
    identity_of,
    judge_of,
    keep_in,
    train_and_keep,
    warn_unrepeatable,
    watched_by,
)
from torchspot.estimators.sizes import Sizes, asked_sizes
from torchspot.latents import Latent, uniform
from torchspot.networks.augmentation import Augmentation
from torchspot.networks.convolutional import picture_critics
from torchspot.networks.critics import mlp_critics
from torchspot.networks.generators import InDataUnits, Shapes
from torchspot.objectives.transport import MarginalWeights, Objective, Transport
from torchspot.plans import PooledPlan, PushforwardPlan, pooled
from torchspot.random import Key
from torchspot.training.engine import engine_for
from torchspot.training.loop import Training, called_here
from torchspot.training.players import Draw, Player, Stream, nothing
from torchspot.training.ranks import Alone, Ranks, ranks_of
from torchspot.training.replicas import stacked
from torchspot.training.schedules import Rising
from torchspot.types import Callback, Cost, Engine, Estimate, Samples, Shape


@dataclass(frozen=True)
class Distance(Estimate):
    """The fitted plan's expected cost: an estimate of the optimal cost, not a bound of it.

    `monte_carlo_error` and `spread` say how well the estimate is known, not how far it is from the truth. For an
    interval that holds the truth call `evaluation.certify(plan, X, Y)`.
    """

    spread: float | None = None
    """Standard deviation over independent runs (replicas), without their Monte-Carlo noise; None for a single run."""


@dataclass(frozen=True)
class Game:
    """What a method makes of a problem."""

    latent: Latent
    weights: MarginalWeights
    networks: Builder | nn.Module
    """Of the generator."""
    objective: Callable[[Transport], Objective] = lambda transport: transport
    """What is played, made of the game without anything more."""
    plan: Callable[..., PushforwardPlan] = PushforwardPlan
    """Made of the fields of a PushforwardPlan."""
    held: tuple[int, ...] | None = None
    """The marginals that need critics; None: all of them."""
    zoom: tuple[float, ...] = ()
    """How wide each marginal that is held is, in standardised units, where critics are to look closely."""
    turns: int = 1
    """Marginals that take turns in being data; of several, part of the rows of each are its own."""
    beside_z: tuple[Any, ...] = ()
    """Samplers of what the generator's loss takes beside z."""
    augmentation: Augmentation | None = None
    """Through which critics see pictures."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the plan says of the method, and what must be the same for a run to be resumed."""

    def held_of(self, problem: Problem) -> tuple[int, ...]:
        """The marginals that critics hold to the data."""
        return tuple(range(len(problem.shapes))) if self.held is None else self.held


class PushforwardEstimator(BaseEstimator, ABC):
    """Learns a plan by a game between a generator and critics; what game, the methods say."""

    cost: Cost
    critics: Builder | nn.Module | None
    marginal_weight: float | Sequence[float] | None
    steps: int | None
    batch_size: int | None
    replicas: int
    preset: Preset | None
    seed: int
    engine: Engine | None
    callbacks: Sequence[Callback]

    @abstractmethod
    def _default_preset(self, problem: Problem) -> Preset:
        """Where none is given."""

    @abstractmethod
    def _as_pictures(self, shapes: Sequence[Shape]) -> bool:
        """Whether samples of these shapes are pictures to the networks."""

    @abstractmethod
    def _game(self, preset: Preset, problem: Problem, sizes: Sizes) -> Game:
        """The networks and losses for this data."""

    def fit(self, *sources: Any, weights: Sequence[Any] | None = None, resume: str | Path | None = None) -> Self:
        """Learns the plan between two or more data sets.

        Args:
            sources: one for each marginal; anything `torchspot.data.as_sampler` takes.
            weights: for each source, one number a row, or None.
            resume: a folder that keeps the state of this run. What is there is continued, bit for bit; an empty or
                new folder starts a run that can be resumed from it.

        Stopped by Ctrl-C, the estimator keeps the plan as it was learned so far.
        """
        with ranks_of(self.engine).together():
            _check_callable(self.cost)
            _check_replicas(self)
            with contextlib.closing(_posed(self, sources, weights)) as problem:
                run = _prepare(self, problem, None if resume is None else Path(resume))
                train_and_keep(run.go, lambda: self._keep(run))
        return self

    def sample(self, n: int, seed: int | None = None) -> Samples:
        """n joint samples of the fitted plan; row k of all marginals belongs together."""
        return self._fitted().sample(n, seed)

    def _fitted(self) -> Any:
        if not hasattr(self, "plan_"):
            raise NotFitted(f"this {type(self).__name__} has no plan yet. Call fit(X, Y) first.")
        return self.plan_

    def _keep(self, run: Run) -> None:
        """Sets what was learned."""
        self.marginal_weights_ = run.weighing.now
        self.history_ = run.history.records
        critics = tuple(run.critics(k) for k in range(run.replicas))
        self.critics_ = critics[0] if run.replicas == 1 else critics
        self.plans_: tuple[Any, ...] = run.plans()
        self.plan_: Any = pooled(self.plans_)
        self.distance_ = _distance(self.plan_)

    def _given_weights(self, preset: Preset, problem: Problem, slack: float) -> MarginalWeights | None:
        """η as the user or the preset gave it, if one did; `slack` is what it is over the slope that it must exceed."""
        given = preset.marginal_weight if self.marginal_weight is None else self.marginal_weight
        if given is None:
            return None
        m = len(problem.shapes)
        flat = np.asarray(given, dtype=float).reshape(-1)
        eta = tuple(flat.tolist()) * (m if len(flat) == 1 else 1)
        if len(eta) != m or not all(value > 0 for value in eta):
            raise InvalidArgument(
                f"marginal_weight must be one number above 0, or one for each of the {m} marginals, and is {given!r}."
            )
        return MarginalWeights(eta, None, "given", slack)


def _prepare(estimator: PushforwardEstimator, problem: Problem, folder: Path | None) -> Run:
    """Checks everything and builds the game; nothing is trained yet."""
    engine, replicas = engine_for(estimator.engine, pictures=problem.pictures), int(estimator.replicas)
    ranks = ranks_of(engine)
    preset = estimator._default_preset(problem) if estimator.preset is None else estimator.preset
    _check_augmentation(preset, problem)
    problem.check_cost(estimator.cost)
    usual = preset.sizes(problem.dim, pictures=problem.pictures, gpu=problem.units.scale.is_cuda)
    sizes = asked_sizes(estimator, usual)
    game = _with_shared_weights(estimator._game(preset, problem, sizes), ranks)
    identity = identity_of(_identity(estimator, preset, problem, game, sizes), ranks)
    judges = _usual_critics(problem, preset, sizes) if estimator.critics is None else estimator.critics
    objectives = [_objective(estimator, problem, game, judges, preset, replica=k) for k in range(replicas)]
    draws = _draws(problem, game, sizes.batch_size, estimator, engine)
    games = [_players(objective, preset, preset.rates(sizes.width), draws) for objective in objectives]
    weighing = Weighing(game.weights, objectives[0].eta)
    training = Training(games[0] if replicas == 1 else stacked(games), sizes.steps, beside=[weighing])
    history, callbacks = watched_by(estimator, folder, ranks)
    if folder is not None:
        warn_unrepeatable([f"data set {k}" for k in problem.unrepeatable])
        callbacks = keep_in(folder, training, callbacks, identity, ranks)
    enough = problem.judged * min(2, game.turns)
    judging = Draw(Key(estimator.seed, "judge z"), *_noise(game, enough, engine), device=engine.device)
    judging.advance()
    judged_by = judging()
    judging.close()
    run = Run(
        problem=problem,
        objective=objectives[0],
        weighing=weighing,
        latent=game.latent,
        training=training,
        engine=engine,
        history=history,
        callbacks=callbacks,
        judge=judge_of(problem, objectives[0], training, judged_by, replicas),
        replicas=replicas,
        seed=int(estimator.seed),
        make_plan=game.plan,
        facts=game.facts,
    )
    for callback in called_here(callbacks, ranks):
        if hasattr(callback, "begin"):
            callback.begin(run)
    return run


def _with_shared_weights(game: Game, ranks: Alone | Ranks) -> Game:
    """With the η that the first process computed: other processors round otherwise. Those that were given stay."""
    shared = ranks.first(game.weights)
    return game if "given" in (shared.source, game.weights.source) else replace(game, weights=shared)


def _posed(estimator: PushforwardEstimator, sources: Sequence[Any], weights: Sequence[Any] | None) -> Problem:
    """The data as the estimator and its preset take it."""
    engine = engine_for(estimator.engine)
    standardise = estimator.preset is None or estimator.preset.standardise
    seed, as_pictures = estimator.seed, estimator._as_pictures
    return pose(sources, weights, seed=seed, engine=engine, standardise=standardise, as_pictures=as_pictures)


def _check_augmentation(preset: Preset, problem: Problem) -> None:
    if preset.augmentation is not None and not problem.pictures:
        raise InvalidArgument(
            "the preset has an augmentation, which is for plans of pictures that draw noise. Leave it out: "
            "replace(preset, augmentation=None)."
        )


def _usual_critics(problem: Problem, preset: Preset, sizes: Sizes) -> Builder:
    """Convolutional for pictures, as wide as the generator at half size; fully connected for anything else."""
    if problem.pictures:
        return picture_critics(2 * sizes.width, preset.control)
    return mlp_critics(sizes.width, preset.critic_depth, preset.control)


def _objective(
    estimator: PushforwardEstimator,
    problem: Problem,
    game: Game,
    judges: Builder | nn.Module,
    preset: Preset,
    *,
    replica: int,
) -> Objective:
    """The game of one replica, built from the seed."""
    units, shapes = problem.units, Shapes(game.latent.dim, problem.shapes)
    device = units.scale.device
    network = build_generator(game.networks, shapes, estimator.seed, replica).to(device, units.dtype)
    held = game.held_of(problem)
    judged = Shapes(game.latent.dim, tuple(problem.shapes[k] for k in held))
    critics = build_critics(judges, judged, estimator.seed, replica).to(device, units.dtype)
    eta = torch.tensor(game.weights.eta, dtype=units.dtype, device=device)
    return game.objective(
        Transport(
            InDataUnits(network, units),
            critics,
            estimator.cost,
            eta,
            held,
            zoom=game.zoom,
            adversarial=preset.adversarial,
            augmentation=game.augmentation,
        )
    )


def _identity(
    estimator: PushforwardEstimator, preset: Preset, problem: Problem, game: Game, sizes: Sizes
) -> dict[str, Any]:
    """What must be the same for a run to be resumed."""
    return {
        "data": problem.fingerprints,
        "seed": int(estimator.seed),
        "cost": costs.to_spec(estimator.cost),
        "marginal weights": list(game.weights.eta),
        "batch size": sizes.batch_size,
        "preset": repr(preset),
        "replicas": int(estimator.replicas),
        **game.facts,
    }


def _distance(plan: PushforwardPlan | PooledPlan) -> Distance:
    cost = plan.expected_cost()
    return Distance(cost.value, cost.monte_carlo_error, plan.spread() if isinstance(plan, PooledPlan) else None)


def _check_replicas(estimator: PushforwardEstimator) -> None:
    count = estimator.replicas
    if not isinstance(count, Integral) or int(count) < 1:
        raise InvalidArgument(f"replicas must be a whole number of at least 1, and is {count!r}.")
    for name in ("generator", "critics"):
        if count > 1 and isinstance(getattr(estimator, name, None), nn.Module):
            raise InvalidArgument(
                f"replicas={count} need weights of their own, and {name}= is a network whose weights are given. "
                f"Pass a builder instead: {name}=lambda shapes, rng: YourNetwork(…)."
            )


def _check_callable(cost: Any) -> None:
    if not callable(cost):
        raise InvalidArgument(f"the cost must be a function such as costs.euclidean, and is {cost!r}.")


def _noise(game: Game, size: int, engine: Engine) -> list[Stream]:
    """What the generator's loss takes."""
    return [Stream(sampler, size, engine.dtype) for sampler in (game.latent, *game.beside_z, *_changes(game))]


def _changes(game: Game) -> list[Latent]:
    """Samplers of the numbers by which pictures are changed, if they are."""
    return [] if game.augmentation is None else [uniform(game.augmentation.dim)]


def _draws(
    problem: Problem, game: Game, size: int, estimator: PushforwardEstimator, engine: Engine
) -> tuple[Draw, Draw]:
    """What the critics draw (z and data) and what the generator draws (noise)."""
    noise = _noise(game, size, engine)
    data = [Stream(problem.samplers[k], size, problem.units.data_dtype) for k in game.held_of(problem)]
    changes = [Stream(sampler, size, engine.dtype) for sampler in _changes(game)]
    replicas = None if estimator.replicas == 1 else int(estimator.replicas)
    rank = ranks_of(engine).rank

    def draw(role: str, *streams: Stream) -> Draw:
        return Draw(Key(estimator.seed, role, rank), *streams, device=engine.device, replicas=replicas)

    return draw("critics", noise[0], *data, *changes), draw("generator", *noise)


def _players(
    objective: Objective, preset: Preset, rates: tuple[float, float], draws: tuple[Draw, Draw]
) -> list[Player]:
    rising = Rising(preset.rise, preset.schedule) if preset.rise else preset.schedule
    critics = Player(
        name="critics",
        modules=(objective.critics,),
        optimizer=preset.optimizer(rates[1], preset.betas, preset.schedule),
        draw=draws[0],
        loss=objective.critic_loss,
        repeats=preset.critic_repeats,
        after_step=getattr(objective.critics, "after_step", nothing),
    )
    mover = Player(
        name="generator",
        modules=(objective.generator,),
        optimizer=preset.optimizer(rates[0], preset.betas, rising),
        draw=draws[1],
        loss=objective.generator_loss,
        repeats=lambda step: preset.generator_steps,
        averaging=preset.averaging,
    )
    return [critics, mover]
