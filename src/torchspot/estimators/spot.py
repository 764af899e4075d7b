"""SPOT: optimal transport between any number of data sets, by a generator that learns the plan."""

__all__ = ["SPOT", "Distance"]

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import nn

from torchspot import costs, latents
from torchspot.errors import InvalidArgument, NotFitted
from torchspot.estimators import presets
from torchspot.estimators.networks import Builder, build_critics, build_generator, moment_start
from torchspot.estimators.presets import Preset, Sizes
from torchspot.estimators.problem import Problem, pose
from torchspot.estimators.run import Run, Weighing, judge_of, keep_in
from torchspot.latents import Latent
from torchspot.networks.critics import mlp_critics
from torchspot.networks.generators import InDataUnits, Shapes, Units, around_affine, separate
from torchspot.objectives.gaussian import AffinePlan
from torchspot.objectives.transport import MarginalWeights, Transport, marginal_weights
from torchspot.plans import PooledPlan, PushforwardPlan
from torchspot.random import Key, generator
from torchspot.training.callbacks import Divergence, History
from torchspot.training.engine import choose_engine
from torchspot.training.loop import Training
from torchspot.training.players import Draw, Player, Stream, nothing
from torchspot.training.replicas import stacked
from torchspot.training.schedules import Rising
from torchspot.types import Callback, Cost, Engine, Estimate, Samples

_LATENT_OF_IMAGES = 100


@dataclass(frozen=True)
class Distance(Estimate):
    """The fitted plan's expected cost: an estimate of the optimal cost, not a bound of it.

    `monte_carlo_error` and `spread` say how well the estimate is known, not how far it is from the truth. For an
    interval that holds the truth call `evaluation.certify(plan, X, Y)`.
    """

    spread: float | None = None
    """Standard deviation over independent runs (replicas), without their Monte-Carlo noise; None for a single run."""


class SPOT(BaseEstimator):
    """Learns a plan that moves samples between data sets at the least expected cost (eq:finalvariant).

    Args:
        cost: function of one batch of each marginal that gives one number a row, differentiable.
        generator: builder `(shapes, rng) -> Module` of the network from noise to the marginals, or a module.
        critics: builder of one module that takes the tuple of samples and gives one value a row for each, or a module.
        latent: the noise; by default Gaussian, as large as the largest marginal (100 for images).
        marginal_weight: η, one number or one for each marginal; by default three times the cost's Lipschitz constant.
        steps: generator steps; by default from the data's dimension.
        batch_size: samples a step; by default from the data's dimension.
        replicas: so many independent runs (weights, mini-batches and noise of their own), computed together.
        preset: how to train; `presets.default()` if None.
        seed: of everything random.
        engine: where and how to train; if None, `Captured()` on a GPU and `Eager()` without one.
        callbacks: called at logged steps.

    After `fit`: `plan_`, `distance_`, `history_`, `marginal_weights_` (η and where it came from) and `critics_`, the
    trained critics (on standardised samples), whose `operator_norms()` measures every layer. With several replicas
    `plan_` pools their plans, `plans_` has each, `critics_` too, and `distance_.spread` says how far they differ.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, Y = rng.normal(size=(500, 2)), rng.normal(size=(500, 2)) + 3
    >>> spot = SPOT(cost=costs.euclidean, steps=20, seed=1).fit(X, Y)
    >>> x, y = spot.sample(4)
    >>> x.shape, y.shape
    (torch.Size([4, 2]), torch.Size([4, 2]))
    """

    def __init__(
        self,
        *,
        cost: Cost = costs.euclidean,
        generator: Builder | nn.Module | None = None,
        critics: Builder | nn.Module | None = None,
        latent: Latent | None = None,
        marginal_weight: float | Sequence[float] | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        replicas: int = 1,
        preset: Preset | None = None,
        seed: int = 0,
        engine: Engine | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.cost = cost
        self.generator = generator
        self.critics = critics
        self.latent = latent
        self.marginal_weight = marginal_weight
        self.steps = steps
        self.batch_size = batch_size
        self.replicas = replicas
        self.preset = preset
        self.seed = seed
        self.engine = engine
        self.callbacks = callbacks

    def fit(self, *sources: Any, weights: Sequence[Any] | None = None, resume: str | Path | None = None) -> "SPOT":
        """Learns the plan between two or more data sets.

        Args:
            sources: one for each marginal; anything `torchspot.data.as_sampler` takes.
            weights: for each source, one number a row, or None.
            resume: a folder that keeps the state of this run. What is there is continued, bit for bit; an empty or
                new folder starts a run that can be resumed from it.

        Stopped by Ctrl-C, the estimator keeps the plan as it was learned so far.
        """
        run = _prepare(self, sources, weights, None if resume is None else Path(resume))
        try:
            run.go()
        except KeyboardInterrupt:
            self._keep(run)
            raise
        return self._keep(run)

    def _keep(self, run: Run) -> "SPOT":
        """Sets what was learned."""
        self.marginal_weights_ = run.weighing.now
        self.history_ = run.history.records
        plans, critics = zip(*(run.learned(k) for k in range(run.replicas)), strict=True)
        self.plans_, self.critics_ = plans, critics[0] if run.replicas == 1 else critics
        self.plan_ = plans[0] if run.replicas == 1 else PooledPlan(plans)
        self.distance_ = _distance(self.plan_)
        return self

    def sample(self, n: int, seed: int | None = None) -> Samples:
        """n joint samples of the fitted plan; row k of all marginals belongs together."""
        if not hasattr(self, "plan_"):
            raise NotFitted("this SPOT has no plan yet. Call fit(X, Y) first.")
        return self.plan_.sample(n, seed)


def _prepare(spot: SPOT, sources: Sequence[Any], weights: Sequence[Any] | None, folder: Path | None) -> Run:
    """Checks everything and builds the game; nothing is trained yet."""
    _check_callable(spot.cost)
    replicas = _check_replicas(spot)
    preset = presets.default() if spot.preset is None else spot.preset
    engine = choose_engine() if spot.engine is None else spot.engine
    problem = pose(sources, weights, seed=spot.seed, engine=engine, standardise=preset.standardise)
    problem.check_cost(spot.cost)
    sizes = _sizes(spot, preset, problem)
    latent = _default_latent(problem) if spot.latent is None else spot.latent
    start = None
    if preset.warm_start and spot.generator is None:
        start = moment_start(spot.cost, latent, problem.units, problem.probe, seed=spot.seed)
    eta = _marginal_weights(spot, preset, problem, start)
    shapes = Shapes(latent.dim, problem.shapes)
    builder = _generator(preset, start, sizes.width) if spot.generator is None else spot.generator
    objectives = [
        _objective(spot, preset, builder, shapes, sizes.width, eta.eta, problem.units, k) for k in range(replicas)
    ]
    draws = _draws(problem, latent, sizes.batch_size, spot, engine)
    games = [_players(objective, preset, preset.rates(sizes.width), draws) for objective in objectives]
    training = Training(games[0] if replicas == 1 else stacked(games), sizes.steps)
    history = History(None if folder is None else folder / "history.jsonl")
    callbacks: tuple[Any, ...] = (Divergence(folder), *spot.callbacks, history)
    weighing = Weighing(eta, objectives[0].eta)
    if folder is not None:
        _warn_unrepeatable(problem)
        checkpoint = keep_in(folder, training, callbacks, weighing, _identity(spot, preset, problem, eta, sizes))
        callbacks = (*(callback for callback in callbacks if callback is not checkpoint), checkpoint)
    z = latent.draw(problem.judged, generator(Key(spot.seed, "judge z"), engine.device)).to(engine.dtype)
    judge = judge_of(problem, objectives[0], training, z, replicas)
    run = Run(
        problem, objectives[0], weighing, latent, training, engine, history, callbacks, judge, replicas, int(spot.seed)
    )
    for callback in callbacks:
        if hasattr(callback, "begin"):
            callback.begin(run)
    return run


def _identity(spot: SPOT, preset: Preset, problem: Problem, eta: MarginalWeights, sizes: Sizes) -> dict[str, Any]:
    """What must be the same for a run to be resumed."""
    return {
        "data": problem.fingerprints,
        "seed": int(spot.seed),
        "cost": costs.to_spec(spot.cost),
        "marginal weights": list(eta.eta),
        "batch size": sizes.batch_size,
        "preset": repr(preset),
        "replicas": int(spot.replicas),
    }


def _distance(plan: PushforwardPlan | PooledPlan) -> Distance:
    cost = plan.expected_cost()
    return Distance(cost.value, cost.monte_carlo_error, plan.spread() if isinstance(plan, PooledPlan) else None)


def _check_replicas(spot: SPOT) -> int:
    count = spot.replicas
    if not isinstance(count, Integral) or int(count) < 1:
        raise InvalidArgument(f"replicas must be a whole number of at least 1, and is {count!r}.")
    for name in ("generator", "critics"):
        if count > 1 and isinstance(getattr(spot, name), nn.Module):
            raise InvalidArgument(
                f"replicas={count} need weights of their own, and {name}= is a network whose weights are given. "
                f"Pass a builder instead: {name}=lambda shapes, rng: YourNetwork(…)."
            )
    return int(count)


def _check_callable(cost: Any) -> None:
    if not callable(cost):
        raise InvalidArgument(f"the cost must be a function such as costs.euclidean, and is {cost!r}.")


def _sizes(spot: SPOT, preset: Preset, problem: Problem) -> Sizes:
    sizes = preset.sizes(problem.dim)
    for name in ("steps", "batch_size"):
        value = getattr(spot, name)
        if value is None:
            continue
        if not isinstance(value, Integral) or int(value) < 1:
            raise InvalidArgument(f"{name} must be a whole number of at least 1, and is {value!r}.")
        sizes = sizes._replace(**{name: int(value)})
    return sizes


def _default_latent(problem: Problem) -> Latent:
    return latents.normal(problem.dim if all(len(s) == 1 for s in problem.shapes) else _LATENT_OF_IMAGES)


def _marginal_weights(spot: SPOT, preset: Preset, problem: Problem, start: AffinePlan | None) -> MarginalWeights:
    given = preset.marginal_weight if spot.marginal_weight is None else spot.marginal_weight
    if given is None:
        return marginal_weights(spot.cost, problem.probe, plan=None if start is None else problem.coupled(start))
    m = len(problem.shapes)
    flat = np.asarray(given, dtype=float).reshape(-1)
    eta = tuple(flat.tolist()) * (m if len(flat) == 1 else 1)
    if len(eta) != m or not all(value > 0 for value in eta):
        raise InvalidArgument(
            f"marginal_weight must be one number above 0, or one for each of the {m} marginals, and is {given!r}."
        )
    return MarginalWeights(eta, None, "given")


def _generator(preset: Preset, start: AffinePlan | None, width: int) -> Builder:
    """The preset's generator, around the affine plan if there is one."""
    if start is not None:
        return around_affine(width, preset.generator_depth, tuple(a.float() for a in start.matrices))
    return separate(width, preset.generator_depth, preset.aligned)


def _objective(
    spot: SPOT,
    preset: Preset,
    networks: Builder | nn.Module,
    shapes: Shapes,
    width: int,
    eta: tuple[float, ...],
    units: Units,
    replica: int,
) -> Transport:
    judges = mlp_critics(width, preset.critic_depth, preset.control) if spot.critics is None else spot.critics
    device = units.scale.device
    network = build_generator(networks, shapes, spot.seed, replica).to(device, units.dtype)
    critics = build_critics(judges, shapes, spot.seed, replica).to(device, units.dtype)
    return Transport(
        InDataUnits(network, units), critics, spot.cost, torch.tensor(eta, dtype=units.dtype, device=device)
    )


def _draws(problem: Problem, latent: Latent, size: int, spot: SPOT, engine: Engine) -> tuple[Draw, Draw]:
    """What the critics draw (noise and data) and what the generator draws (noise)."""
    noise = Stream(latent, size, engine.dtype)
    data = [Stream(sampler, size, problem.units.data_dtype) for sampler in problem.samplers]
    replicas = None if spot.replicas == 1 else int(spot.replicas)

    def draw(role: str, *streams: Stream) -> Draw:
        return Draw(Key(spot.seed, role), *streams, device=engine.device, replicas=replicas)

    return draw("critics", noise, *data), draw("generator", noise)


def _players(
    objective: Transport, preset: Preset, rates: tuple[float, float], draws: tuple[Draw, Draw]
) -> list[Player]:
    rising = Rising(preset.rise, preset.schedule) if preset.rise else preset.schedule
    critics = Player(
        name="critics",
        modules=(objective.critics,),
        optimizer=preset.optimizer(rates[1], preset.betas, preset.schedule),
        draw=draws[0],
        loss=objective.critic_loss,
        repeats=lambda step: preset.critic_steps,
        after_step=getattr(objective.critics, "after_step", nothing),
    )
    mover = Player(
        name="generator",
        modules=(objective.generator,),
        optimizer=preset.optimizer(rates[0], preset.betas, rising),
        draw=draws[1],
        loss=objective.generator_loss,
        averaging=preset.averaging,
    )
    return [critics, mover]


def _warn_unrepeatable(problem: Problem) -> None:
    for k in problem.unrepeatable:
        warnings.warn(
            f"data set {k} cannot be drawn again in the same order: a resumed run will go on, but not bit for bit. "
            "A function that takes generator= can.",
            stacklevel=4,
        )
