"""SPOT: optimal transport between any number of data sets, by a generator that learns the plan."""

__all__ = ["SPOT", "Distance"]

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from torchspot import costs, latents
from torchspot.errors import InvalidArgument, NotFitted
from torchspot.estimators import presets
from torchspot.estimators.presets import Preset, Sizes
from torchspot.estimators.problem import Problem, pose
from torchspot.latents import Latent
from torchspot.networks.critics import CriticsInDataUnits, mlp_critics
from torchspot.networks.generators import InDataUnits, Shapes, separate
from torchspot.objectives.transport import MarginalWeights, Transport, marginal_weights
from torchspot.plans import PushforwardPlan
from torchspot.random import Key, generator
from torchspot.training.callbacks import Checkpoint, Divergence, History
from torchspot.training.checkpoint import load_checkpoint
from torchspot.training.engine import Eager
from torchspot.training.loop import Averaging, Draw, Player, Stream, Training, train
from torchspot.types import Callback, Cost, Engine, Estimate, Record, Samples

Builder = Callable[[Shapes, torch.Generator], nn.Module]

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

    After `fit`: `plan_`, `distance_`, `history_`, `marginal_weights_`.

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
            "seed": self.seed,
        }
        return PushforwardPlan(self.averaging.module, self.latent, self.objective.cost, self.problem.held_out, facts)


def _prepare(spot: SPOT, sources: Sequence[Any], weights: Sequence[Any] | None, folder: Path | None) -> _Run:
    """Checks everything and builds the game; nothing is trained yet."""
    preset = presets.default() if spot.preset is None else spot.preset
    engine = Eager() if spot.engine is None else spot.engine
    problem = pose(sources, weights, seed=spot.seed, engine=engine)
    problem.check_cost(spot.cost)
    sizes = _sizes(spot, preset, problem)
    latent = _default_latent(problem) if spot.latent is None else spot.latent
    eta = _marginal_weights(spot, preset, problem)
    networks = _networks(spot, preset, Shapes(latent.dim, problem.shapes), sizes.width)
    objective = _objective(networks, spot.cost, eta, problem, engine)
    averaging = Averaging(objective.generator, preset.averaging)
    players = _players(objective, averaging, preset, _draws(problem, latent, sizes.batch_size, spot.seed, engine))
    training = Training(players, sizes.steps)
    history = History(None if folder is None else folder / "history.jsonl")
    callbacks: tuple[Any, ...] = (Divergence(folder), history, *spot.callbacks)
    if folder is not None:
        checkpoint = _resume(folder, training, callbacks, problem)
        callbacks = (*(callback for callback in callbacks if callback is not checkpoint), checkpoint)
    z = latent.draw(problem.judged, generator(Key(spot.seed, "judge z"), engine.device)).to(engine.dtype)
    return _Run(problem, objective, eta, latent, averaging, training, engine, history, callbacks, z, spot.seed)


def _sizes(spot: SPOT, preset: Preset, problem: Problem) -> Sizes:
    sizes = preset.sizes(problem.dim)
    for name in ("steps", "batch_size"):
        value = getattr(spot, name)
        if value is not None and not (isinstance(value, int) and value >= 1):
            raise InvalidArgument(f"{name} must be a whole number of at least 1, and is {value!r}.")
        sizes = sizes if value is None else sizes._replace(**{name: value})
    return sizes


def _default_latent(problem: Problem) -> Latent:
    return latents.normal(problem.dim if all(len(s) == 1 for s in problem.shapes) else _LATENT_OF_IMAGES)


def _marginal_weights(spot: SPOT, preset: Preset, problem: Problem) -> MarginalWeights:
    given = preset.marginal_weight if spot.marginal_weight is None else spot.marginal_weight
    if given is None:
        return marginal_weights(spot.cost, problem.probe)
    m = len(problem.shapes)
    eta = tuple(map(float, given)) if isinstance(given, Sequence) else (float(given),) * m
    if len(eta) != m or not all(value > 0 for value in eta):
        raise InvalidArgument(
            f"marginal_weight must be one number above 0, or one for each of the {m} marginals, and is {given!r}."
        )
    return MarginalWeights(eta, None, "given")


def _networks(spot: SPOT, preset: Preset, shapes: Shapes, width: int) -> tuple[nn.Module, nn.Module]:
    """The user's networks, or the preset's, with weights drawn from the seed."""
    generator_builder = (
        separate(width, preset.generator_depth, preset.aligned) if spot.generator is None else spot.generator
    )
    critics_builder = mlp_critics(width, preset.critic_depth, preset.control) if spot.critics is None else spot.critics
    network = _build(generator_builder, shapes, Key(spot.seed, "generator weights"))
    _check_generator(network, shapes)
    return network, _build(critics_builder, shapes, Key(spot.seed, "critic weights"))


def _build(builder: Builder | nn.Module, shapes: Shapes, key: Key) -> nn.Module:
    return copy.deepcopy(builder) if isinstance(builder, nn.Module) else builder(shapes, generator(key))


def _check_generator(network: nn.Module, shapes: Shapes) -> None:
    dtype = next((p.dtype for p in network.parameters()), torch.float32)
    with torch.no_grad():
        made = network(torch.zeros(2, shapes.latent, dtype=dtype))
    came = [tuple(x.shape[1:]) for x in made] if isinstance(made, tuple) else type(made).__name__
    if came != list(shapes.marginals):
        raise InvalidArgument(
            f"the generator must return a tuple of samples with shapes {list(shapes.marginals)}, and returned {came}."
        )


def _objective(
    networks: tuple[nn.Module, nn.Module], cost: Cost, weights: MarginalWeights, problem: Problem, engine: Engine
) -> Transport:
    network, critics = (module.to(engine.device, engine.dtype) for module in networks)
    return Transport(InDataUnits(network, problem.units), CriticsInDataUnits(critics, problem.units), cost, weights.eta)


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


class _SameData:
    """Goes into the checkpoint, so that a run is resumed only with the data it began with."""

    def __init__(self, fingerprints: list[str], folder: Path) -> None:
        self.fingerprints, self.folder = fingerprints, folder

    def state_dict(self) -> dict[str, Any]:
        return {"fingerprints": self.fingerprints}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["fingerprints"] != self.fingerprints:
            raise InvalidArgument(
                f"the run in {self.folder} was begun with other data. Resume it with the same data, "
                "or start a new run in another folder."
            )


def _resume(folder: Path, training: Training, callbacks: Sequence[Any], problem: Problem) -> Checkpoint:
    """Continues from the folder's checkpoint if there is one; from now on keeps one there."""
    mine = [callback for callback in callbacks if isinstance(callback, Checkpoint) and callback.folder == folder]
    checkpoint = mine[0] if mine else Checkpoint(folder)
    checkpoint.companions = (_SameData(problem.fingerprints, folder), *callbacks)
    load_checkpoint(folder, training, checkpoint.companions)
    return checkpoint
