"""The methods of table 1 on one task: how each is trained, watched on the way, and judged."""

__all__ = ["METHODS", "Fitted", "Watched", "curves_of", "fitted"]

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from torchspot import DASPOT, costs, presets
from torchspot.baselines import ROT, DeepJDOT, Supervised
from torchspot.baselines.deepjdot import of_samples
from torchspot.estimators.adapting import AdaptationPreset
from torchspot.networks.augmentation import Distortion, Unchanged
from torchspot.networks.lipschitz import Free, SpectralNorm
from torchspot.networks.tied import tied
from torchspot.networks.translated import translated
from torchspot.objectives.adaptation_parts import DomainAdversary, PairRisk, Parts, Translation
from torchspot.objectives.regularised import Quadratic
from torchspot.objectives.teacher import TARGET
from torchspot.training.engine import Eager, choose_engine
from torchspot.types import Engine, Record
from torchspot_paper.domains import AdaptationTask
from torchspot_paper.networks import cnn_generators, cnn_judges, resnet_generators, resnet_judges
from torchspot_paper.recipe import Call

STEPS = 6000
"""Of the default recipe."""
ROT_EPSILON = 0.02
"""Of the quadratic penalty: pairs of pictures cost about 100, and the plan joins each with some others."""
LARGE = (32, 32)
"""Pictures of this size get the appendix' residual networks."""


class Watched:
    """Notes the share of test pictures that are labelled right as training goes on, and after how many seconds.

    For reports alone: nothing in training sees it, and the seconds it takes itself are left out. Only a run that is
    timed until the accuracy is `enough` ends there.
    """

    def __init__(self, task: AdaptationTask, before: float = 0.0, enough: float = math.inf) -> None:
        self.task, self._away, self.enough = task, -before, enough
        self._before = 0
        self.steps: list[int] = []
        self.seconds: list[float] = []
        self.accuracy: list[float] = []

    def begin(self, run: Any) -> None:
        """Called before the first step of each of the trainings that follow each other."""
        self._run = run
        if self.steps:
            self._before, self._away = self.steps[-1], -self.seconds[-1]

    def __call__(self, training: Any, record: Record) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        started = time.perf_counter()
        self.steps.append(self._before + training.step)
        self.seconds.append(training.seconds - self._away)
        self.accuracy.append(accuracy(self._run.classifier(TARGET), self.task))
        self._away += time.perf_counter() - started
        if self.accuracy[-1] >= self.enough:
            training.stop(f"accuracy of {self.enough}")

    def seconds_to(self, level: float) -> float | None:
        """When the accuracy was first so high; None if it never was."""
        return next((s for s, a in zip(self.seconds, self.accuracy, strict=True) if a >= level), None)


@dataclass(frozen=True)
class Fitted:
    """A trained classifier of the target, and what it was like on the way there."""

    estimator: Any
    watched: Watched
    seconds: float

    @property
    def last(self) -> float:
        """The accuracy of the last iterate."""
        return self.watched.accuracy[-1]


def curves_of(runs: Sequence[Fitted]) -> dict[str, list[float]]:
    """What was noted on the way, by seed."""
    return {
        f"{name} {seed}": list(getattr(run.watched, name))
        for seed, run in enumerate(runs)
        for name in ("steps", "seconds", "accuracy")
    }


def accuracy(classifier: Any, task: AdaptationTask) -> float:
    """The share of target test pictures that are labelled right."""
    right, parts = 0, max(1, len(task.target.test) // 1000)
    for images, labels in zip(
        np.array_split(task.target.test, parts), np.array_split(task.target.test_labels, parts), strict=True
    ):
        right += int((classifier.predict(images.astype(np.float32) / 255) == labels).sum())
    return right / len(task.target.test)


def fitted(
    call: Call, task: AdaptationTask, method: str, preset: str, seed: int, *, enough: float = math.inf
) -> Fitted:
    """Trains one method on one task, to its end or until this share of test pictures is labelled right."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "some classes seem to be absent", UserWarning)
        estimator, watched = METHODS[method](_Order(call, task, preset, seed, enough))
    return Fitted(estimator, watched, time.perf_counter() - started)


@dataclass(frozen=True)
class _Order:
    """What a method is to do."""

    call: Call
    task: AdaptationTask
    preset: str
    seed: int
    enough: float = math.inf
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "engine", choose_engine(self.call.device, pictures=True))

    def sizes(self, **usual: int) -> dict[str, Any]:
        """The arguments of this name, or a few steps on small batches."""
        small = {"steps": 2, "source_steps": 2, "batch_size": 20}
        return {name: small[name] if self.call.quick else value for name, value in usual.items()}


Trained = tuple[Any, Watched]


def _daspot(order: _Order) -> Trained:
    """The default recipe, or one without a part of it."""
    recipe = RECIPES.get(order.preset, RECIPES["default"])(presets.adaptation())
    steps = 20 if order.preset == "warm-up" else STEPS
    return _trained_daspot(order, preset=recipe, **order.sizes(steps=steps))


def _trained_daspot(order: _Order, **given: Any) -> Trained:
    watched = Watched(order.task, enough=order.enough)
    daspot = DASPOT(seed=order.seed, engine=order.engine, callbacks=[watched], **given)
    return daspot.fit(*order.task.sources()), watched


def _literal(order: _Order, recipe: AdaptationPreset, control: Any) -> Trained:
    """With the appendix' networks."""
    large = order.task.source.train.shape[2:] == LARGE
    generators: Any = resnet_generators if large else cnn_generators
    generators = generators if recipe.parts.translation is None else translated(generators)
    judges = resnet_judges(control) if large else cnn_judges(control)
    steps, batch = recipe.steps or 1, recipe.batch_size or 1
    return _trained_daspot(
        order, preset=recipe, generator=generators, judges=judges, **order.sizes(steps=steps, batch_size=batch)
    )


def _paper(order: _Order) -> Trained:
    return _literal(order, presets.adaptation_paper(), SpectralNorm())


def _reference(order: _Order) -> Trained:
    """The scripts differ from task to task in parts that the paper does not tell of."""
    recipe = presets.adaptation_reference()
    own = REFERENCE_PARTS.get(order.task.name, {})
    recipe = replace(recipe, parts=replace(recipe.parts, **own), judge_steps=5 if "svhn" in order.task.name else 1)
    return _literal(order, recipe, Free())


def _cogan(order: _Order) -> Trained:
    """CoGAN's way: generators and judges share layers, one of the judges' heads is a classifier; no cost, no pairs."""
    parts = Parts(critic=1.0, source=1.0, cost=0.0)
    usual = replace(presets.adaptation(), learning_rate=2e-4, judge_learning_rate=2e-4)
    recipe = replace(usual, parts=parts, change=Unchanged(), balanced=False)
    return _trained_daspot(order, preset=recipe, generator=tied(32, 1), **order.sizes(steps=STEPS))


def _supervised(order: _Order, images: Any, labels: np.ndarray, before: float = 0.0) -> Trained:
    watched = Watched(order.task, before, order.enough)
    change = Distortion() if order.preset == "changed" else Unchanged()
    learner = Supervised(
        seed=order.seed, engine=order.engine, change=change, callbacks=[watched], **order.sizes(steps=3000)
    )
    return learner.fit(images, labels), watched


def _source_only(order: _Order) -> Trained:
    source, labels, _ = order.task.sources()
    return _supervised(order, source, labels)


def _oracle(order: _Order) -> Trained:
    """Knows the labels of the target's training pictures."""
    return _supervised(order, order.task.sources()[2], order.task.target.train_labels)


def _jdot(order: _Order, **own: Any) -> Trained:
    """As its authors have it; or faster."""
    watched = Watched(order.task, enough=order.enough)
    fast = {"source_steps": 1000, "steps": 600, "batch_size": 500}
    usual = {"source_steps": 3000, "steps": 2000, "batch_size": 500}
    sizes = {"fast": fast, "warm-up": {"source_steps": 20, "steps": 5, "batch_size": 500}}.get(order.preset, usual)
    own |= {"learning_rate": 1e-3} if order.preset == "fast" else {}
    own |= {"change": Distortion()} if order.preset == "changed" else {}
    jdot = DeepJDOT(
        seed=order.seed,
        engine=Eager("cpu") if order.engine.device.type == "cpu" else None,
        callbacks=[watched],
        **own,
        **order.sizes(**sizes),
    )
    return jdot.fit(*order.task.sources()), watched


def _rot(order: _Order) -> Trained:
    """A map learned from the regularised dual, then a classifier of mapped source pictures."""
    started = time.perf_counter()
    task = order.task
    rows = [x.reshape(len(x), -1).astype(np.float32) / 255 for x in (task.source.train, task.target.train)]
    rot = ROT(
        cost=costs.squared_euclidean,
        regularisation=Quadratic(),
        epsilon=ROT_EPSILON,
        seed=order.seed,
        engine=order.call.engine(),
        **order.sizes(steps=5000),
    )
    mapped = rot.fit(*rows).plans_[0].moved(rows[0]).reshape(task.source.train.shape).clip(0, 1)
    return _supervised(order, mapped, task.source.train_labels, time.perf_counter() - started)


def _without(**parts: Any) -> Callable[[AdaptationPreset], AdaptationPreset]:
    """The recipe with other parts."""
    return lambda recipe: replace(recipe, parts=replace(recipe.parts, **parts))


def _teaching(**own: Any) -> Callable[[AdaptationPreset], AdaptationPreset]:
    """The recipe with another teacher."""

    def changed(recipe: AdaptationPreset) -> AdaptationPreset:
        assert recipe.parts.teaching is not None
        return replace(recipe, parts=replace(recipe.parts, teaching=replace(recipe.parts.teaching, **own)))

    return changed


RECIPES: dict[str, Callable[[AdaptationPreset], AdaptationPreset]] = {
    "default": lambda recipe: recipe,
    "without the generator": _without(critic=0.0, cost=0.0, pairs=None),
    "without pairs": _without(pairs=None),
    "without cost": _without(cost=0.0),
    "without teacher": _without(teaching=None),
    "without alignment": _teaching(alignment=None),
    "without balance": lambda recipe: replace(recipe, balanced=False),
    "without changes": lambda recipe: replace(recipe, change=Unchanged()),
    "without recolouring": lambda recipe: replace(recipe, change=Distortion(gain=0.0, level=0.0, negative=False)),
}
"""The default, and what is left of it without one of its parts."""

REFERENCE_PARTS: dict[str, dict[str, Any]] = {
    "usps->mnist": {"translation": Translation()},
    "svhn->mnist": {"adversary": DomainAdversary(shallow=True, deep=True)},
    "mnist->mnistm": {
        "adversary": DomainAdversary(shallow=True, deep=False),
        "pairs": PairRisk(1.0, start=0.0, confidence=0.95),
    },
}
"""What the authors' scripts add, task by task; weights that are not known are those of the library."""

METHODS: dict[str, Callable[[_Order], Trained]] = {
    "daspot": _daspot,
    "daspot-paper": _paper,
    "daspot-reference": _reference,
    "deepjdot": _jdot,
    "stochjdot": partial(_jdot, features=of_samples),
    "rot": _rot,
    "cogan": _cogan,
    "source-only": _source_only,
    "oracle": _oracle,
}
