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
from torch import Tensor, nn

from torchspot import costs, latents
from torchspot.errors import InvalidArgument, NotFitted
from torchspot.estimators import presets
from torchspot.estimators.networks import Builder, build_critics, build_generator
from torchspot.estimators.presets import Preset, Sizes
from torchspot.estimators.problem import Problem, pose
from torchspot.latents import Latent
from torchspot.networks.critics import CriticsInDataUnits, mlp_critics
from torchspot.networks.generators import InDataUnits, Shapes, Units, separate
from torchspot.objectives.transport import MarginalWeights, Transport, marginal_weights
from torchspot.plans import PushforwardPlan
from torchspot.random import Key, generator
from torchspot.training.callbacks import Checkpoint, Divergence, History
from torchspot.training.checkpoint import load_checkpoint
from torchspot.training.engine import Eager
from torchspot.training.loop import Averaging, Draw, Player, Stream, Training, train
from torchspot.types import Callback, Cost, Engine, Estimate, Record, Samples

_LATENT_OF_IMAGES = 100


@dataclass(frozen=True)
class Distance(Estimate):
    """The fitted plan's expected cost."""

    spread: float | None = None
    """Standard deviation over independent runs, where there was more than one."""


class SPOT(BaseEstimator):
    """Learns a plan that moves samples between data sets at the least expected cost (eq:finalvariant).

    Args:
        cost: function of one batch of each marginal that gives one number a row, differentiable.
        generator: builder `(shapes, rng) -> Module` of the network from noise to the marginals, or a module.
        critics: builder of one module that takes the tuple of samples and gives one value a row for each, or a module.
        latent: the noise; by default Gaussian, as large as the largest marginal (100 for images).
        marginal_weight: η, one number or one for each marginal; by default twice the cost's Lipschitz constant.
        steps: generator steps; by default from the data's dimension.
        batch_size: samples a step; by default from the data's dimension.
        preset: how to train; `presets.default()` if None.
        seed: of everything random.
        engine: where to train; `Eager()` if None.
        callbacks: called at logged steps.

    After `fit`: `plan_`, `distance_`, `history_`, `marginal_weights_` (η and where it came from) and `critics_`, the
    trained critics (on standardised samples), whose `operator_norms()` measures every layer.

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

    def _keep(self, run: "_Run") -> "SPOT":
        """Sets what was learned."""
        self.marginal_weights_ = run.weights
        self.history_ = run.history.records
        self.critics_ = run.objective.critics.critics
        self.plan_ = run.plan()
        self.distance_ = Distance(**vars(self.plan_.expected_cost()))
        return self

    def sample(self, n: int, seed: int | None = None) -> Samples:
        """n joint samples of the fitted plan; row k of all marginals belongs together."""
        if not hasattr(self, "plan_"):
            raise NotFitted("this SPOT has no plan yet. Call fit(X, Y) first.")
        return self.plan_.sample(n, seed)


@dataclass(frozen=True)
class _Run:
    """Everything one call of `fit` works with."""

    problem: Problem
    objective: Transport
    weights: MarginalWeights
    latent: Latent
    averaging: Averaging[InDataUnits]
    training: Training
    engine: Engine
    history: History
    callbacks: tuple[Callback, ...]
    z: Tensor
    seed: int

    @property
    def log_every(self) -> int:
        """At least 20 logs, at most 100 steps apart."""
        return max(1, min(100, self.training.steps // 20))

    def go(self) -> None:
        """Trains to the end."""
        train(
            self.training,
            engine=self.engine,
            callbacks=self.callbacks,
            measure=self.measure,
            log_every=self.log_every,
        )

    def measure(self) -> Record:
        """Cost, objective and marginal error of the averaged generator, on noise and data that training never draws."""
        with torch.no_grad():
            generated = self.averaging.module(self.z)
            cost = self.objective.cost(*generated).double().mean()
            objective = cost + self.objective.gap(generated, self.problem.judges)
        errors = self.problem.marginal_errors(generated)
        record = {"cost": float(cost), "objective": float(objective), "marginal_error": max(errors)}
        return record | {f"marginal_error_{k + 1}": error for k, error in enumerate(errors)}

    def plan(self) -> PushforwardPlan:
        """The averaged generator as it stands."""
        facts = {
            "eta": list(self.weights.eta),
            "lipschitz": None if self.weights.lipschitz is None else list(self.weights.lipschitz),
            "lipschitz_source": self.weights.source,
            "steps": self.training.step,
            "stopped": self.training.stop_reason,
            "seed": int(self.seed),
        }
        network = self.averaging.module.eval()
        return PushforwardPlan(network, self.latent, self.objective.cost, self.problem.held_out, facts)


def _prepare(spot: SPOT, sources: Sequence[Any], weights: Sequence[Any] | None, folder: Path | None) -> _Run:
    """Checks everything and builds the game; nothing is trained yet."""
    _check_callable(spot.cost)
    preset = presets.default() if spot.preset is None else spot.preset
    engine = Eager() if spot.engine is None else spot.engine
    problem = pose(sources, weights, seed=spot.seed, engine=engine)
    problem.check_cost(spot.cost)
    sizes = _sizes(spot, preset, problem)
    latent = _default_latent(problem) if spot.latent is None else spot.latent
    eta = _marginal_weights(spot, preset, problem)
    objective = _objective(
        spot, preset, Shapes(latent.dim, problem.shapes), sizes.width, eta.eta, problem.units, engine
    )
    averaging = Averaging(objective.generator, preset.averaging)
    players = _players(objective, averaging, preset, _draws(problem, latent, sizes.batch_size, spot.seed, engine))
    training = Training(players, sizes.steps)
    history = History(None if folder is None else folder / "history.jsonl")
    callbacks: tuple[Any, ...] = (Divergence(folder), history, *spot.callbacks)
    if folder is not None:
        _warn_unrepeatable(problem)
        identity = {
            "data": problem.fingerprints,
            "seed": int(spot.seed),
            "cost": costs.to_spec(spot.cost),
            "marginal weights": list(eta.eta),
            "batch size": sizes.batch_size,
            "preset": repr(preset),
        }
        checkpoint = _resume(folder, training, callbacks, identity)
        callbacks = (*(callback for callback in callbacks if callback is not checkpoint), checkpoint)
    z = latent.draw(problem.judged, generator(Key(spot.seed, "judge z"), engine.device)).to(engine.dtype)
    return _Run(problem, objective, eta, latent, averaging, training, engine, history, callbacks, z, spot.seed)


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


def _marginal_weights(spot: SPOT, preset: Preset, problem: Problem) -> MarginalWeights:
    given = preset.marginal_weight if spot.marginal_weight is None else spot.marginal_weight
    if given is None:
        return marginal_weights(spot.cost, problem.probe)
    m = len(problem.shapes)
    flat = np.asarray(given, dtype=float).reshape(-1)
    eta = tuple(flat.tolist()) * (m if len(flat) == 1 else 1)
    if len(eta) != m or not all(value > 0 for value in eta):
        raise InvalidArgument(
            f"marginal_weight must be one number above 0, or one for each of the {m} marginals, and is {given!r}."
        )
    return MarginalWeights(eta, None, "given")


def _objective(
    spot: SPOT, preset: Preset, shapes: Shapes, width: int, eta: tuple[float, ...], units: Units, engine: Engine
) -> Transport:
    aligned = preset.aligned_from is not None and len(shapes.marginals) >= preset.aligned_from
    networks = separate(width, preset.generator_depth, aligned) if spot.generator is None else spot.generator
    judges = mlp_critics(width, preset.critic_depth, preset.control) if spot.critics is None else spot.critics
    network = build_generator(networks, shapes, spot.seed).to(engine.device, engine.dtype)
    critics = build_critics(judges, shapes, spot.seed).to(engine.device, engine.dtype)
    return Transport(InDataUnits(network, units), CriticsInDataUnits(critics, units), spot.cost, eta)


def _draws(problem: Problem, latent: Latent, size: int, seed: int, engine: Engine) -> tuple[Draw, Draw]:
    """What the critics draw (noise and data) and what the generator draws (noise)."""

    def stream(sampler: Any, role: str, dtype: torch.dtype) -> Stream:
        return Stream(sampler, size, Key(seed, role), device=engine.device, dtype=dtype)

    data = [stream(s, f"data {k}", problem.units.data_dtype) for k, s in enumerate(problem.samplers)]
    return Draw(stream(latent, "critics z", engine.dtype), *data), Draw(stream(latent, "generator z", engine.dtype))


def _players(
    objective: Transport, averaging: Averaging[InDataUnits], preset: Preset, draws: tuple[Draw, Draw]
) -> list[Player]:
    def optimizer(rate: float) -> Any:
        return preset.optimizer(rate, preset.betas, preset.schedule)

    critics = Player(
        name="critics",
        modules=(objective.critics,),
        optimizer=optimizer(preset.critic_learning_rate),
        draw=draws[0],
        loss=objective.critic_loss,
        repeats=lambda step: preset.critic_steps,
        after_step=objective.critics.after_step,
    )
    mover = Player(
        name="generator",
        modules=(objective.generator,),
        optimizer=optimizer(preset.learning_rate),
        draw=draws[1],
        loss=objective.generator_loss,
        repeats=lambda step: 1,
        after_step=averaging,
    )
    return [critics, mover]


def _warn_unrepeatable(problem: Problem) -> None:
    for k in problem.unrepeatable:
        warnings.warn(
            f"data set {k} cannot be drawn again in the same order: a resumed run will go on, but not bit for bit. "
            "A function that takes generator= can.",
            stacklevel=4,
        )


class _Identity:
    """Goes into the checkpoint, so that a run is resumed only as what it began."""

    def __init__(self, facts: dict[str, Any], folder: Path) -> None:
        self.facts, self.folder = facts, folder

    def state_dict(self) -> dict[str, Any]:
        return self.facts

    def load_state_dict(self, state: dict[str, Any]) -> None:
        differing = [name for name, value in self.facts.items() if state.get(name) != value]
        if differing:
            raise InvalidArgument(
                f"the run in {self.folder} was begun with other {' and '.join(differing)}. "
                "Resume it with the same, or start a new run in another folder."
            )


def _resume(folder: Path, training: Training, callbacks: Sequence[Any], identity: dict[str, Any]) -> Checkpoint:
    """Continues from the folder's checkpoint if there is one; from now on keeps one there."""
    kept = (c for c in callbacks if isinstance(c, Checkpoint) and c.folder.resolve() == folder.resolve())
    checkpoint = next(kept, None) or Checkpoint(folder)
    checkpoint.companions = (_Identity(identity, folder), *(c for c in callbacks if c is not checkpoint))
    load_checkpoint(folder, training, checkpoint.companions)
    return checkpoint
