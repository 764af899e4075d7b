"""Recipes of DASPOT: everything about domain adaptation that is not the data itself."""

__all__ = ["AdaptationPreset", "adaptation", "adaptation_of_vectors", "adaptation_paper", "adaptation_reference"]

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torchspot.errors import InvalidArgument
from torchspot.estimators.sizes import Sizes
from torchspot.networks.augmentation import Change, Unchanged
from torchspot.objectives.adaptation_parts import ClassAlignment, PairRisk, Parts, SelfTraining, Translation
from torchspot.objectives.adversarial import Adversarial, Logistic, Wasserstein
from torchspot.training.optimizers import Adam, Optimizer
from torchspot.training.schedules import Constant, Cosine, Schedule

_OF_PICTURES = {True: Sizes(32, 128, 6000), False: Sizes(8, 64, 1500)}
"""On a GPU, and on a CPU."""
_OF_VECTORS = Sizes(64, 256, 3000)


@dataclass(frozen=True)
class AdaptationPreset:
    """One recipe of DASPOT. `presets.adaptation()` and its siblings make them."""

    learning_rate: float
    """Of the generator, at its highest."""
    judge_learning_rate: float
    """Of critics and classifiers, at its highest."""
    optimizer: Callable[[float, tuple[float, float], Schedule], Optimizer]
    """The class, for both players."""
    betas: tuple[float, float]
    """Adam's two decays."""
    schedule: Schedule
    """How both rates move."""
    averaging: float
    """Decay of the average of the generator that becomes the plan; 0 takes the last iterate."""
    teacher: float
    """Decay of the average of the judges, which is the teacher and in the end the classifier; 0: the last iterate."""
    judge_steps: int
    """Steps of the judges before each step of the generator."""
    adversarial: Adversarial
    """What the critics are asked."""
    parts: Parts
    """What the judges minimise."""
    change: Change | None
    """Through which judges see samples; None: a `Distortion` of pictures, a `Noise` of vectors."""
    balanced: bool = False
    """Whether source samples are drawn class by class, as many of each; else as they come (by weight, say).

    The plan is then one of the balanced source, and classes of the target are taken to be about equally frequent.
    """
    width: int | None = None
    """Of the generator; None takes it from the data."""
    batch_size: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if not (self.learning_rate > 0 and self.judge_learning_rate > 0):
            raise InvalidArgument(
                f"learning rates must be above 0, and are {self.learning_rate} and {self.judge_learning_rate}."
            )
        for name in ("averaging", "teacher"):
            if not 0 <= getattr(self, name) < 1:
                raise InvalidArgument(f"{name} must be at least 0 and below 1, and is {getattr(self, name)}.")
        for name in ("judge_steps", "width", "batch_size", "steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidArgument(f"{name} must be at least 1, and is {value}.")

    def sizes(self, *, pictures: bool, gpu: bool) -> Sizes:
        """Width, batch and steps, where the recipe does not say."""
        usual = _OF_PICTURES[gpu] if pictures else _OF_VECTORS
        given = (self.width, self.batch_size, self.steps)
        return Sizes(*(default if value is None else value for value, default in zip(given, usual, strict=True)))


def adaptation(learning_rate: float = 1e-3) -> AdaptationPreset:
    """The recipe that works: SPOT's pairs, and a teacher that labels the target samples that it is sure of."""
    return AdaptationPreset(
        learning_rate=learning_rate / 2,
        judge_learning_rate=learning_rate,
        optimizer=Adam,
        betas=(0.5, 0.999),
        schedule=Cosine(),
        averaging=0.999,
        teacher=0.995,
        judge_steps=1,
        adversarial=Logistic(),
        parts=Parts(
            critic=0.1,
            source=1.0,
            cost=0.001,
            pairs=PairRisk(0.1, start=0.25, confidence=0.9),
            teaching=SelfTraining(1.0, confidence=0.8, alignment=ClassAlignment()),
        ),
        change=None,
        balanced=True,
    )


def adaptation_of_vectors(learning_rate: float = 1e-3) -> AdaptationPreset:
    """The recipe for vectors: a map T of source samples, near them as they are and as the classifier sees them.

    Critics hold T(x) to the target, and it keeps the label of x. Without a teacher: what vectors of a class have in
    common, a network does not know without being told, and a teacher holds fast to what it believes at first.
    """
    return replace(
        adaptation(learning_rate),
        parts=Parts(critic=1.0, source=1.0, cost=0.01, ground=2.0, translation=Translation(1.0, risk=1.0)),
        balanced=False,
    )


def adaptation_paper(learning_rate: float = 1e-4) -> AdaptationPreset:
    """As printed, at a tenth of its length: η_s = 10³, η_da = 10 after a quarter of the run, batches of 128.

    What the paper does not say is as in the authors' scripts: critics count 100 times as much as the cost.
    """
    return AdaptationPreset(
        learning_rate=learning_rate,
        judge_learning_rate=learning_rate,
        optimizer=Adam,
        betas=(0.5, 0.999),
        schedule=Constant(),
        averaging=0.0,
        teacher=0.0,
        judge_steps=1,
        adversarial=Wasserstein(),
        parts=Parts(critic=100.0, pull=100.0, source=1000.0, cost=1.0, pairs=PairRisk(10.0, start=0.25)),
        change=Unchanged(),
        batch_size=128,
        steps=40_000,
    )


def adaptation_reference(learning_rate: float = 2e-4) -> AdaptationPreset:
    """What the authors' scripts do: critics that tell real from made, weights 1, 10 and .01, weight decay."""
    return AdaptationPreset(
        learning_rate=learning_rate,
        judge_learning_rate=learning_rate,
        optimizer=partial(Adam, weight_decay=5e-4),
        betas=(0.5, 0.999),
        schedule=Constant(),
        averaging=0.0,
        teacher=0.0,
        judge_steps=1,
        adversarial=Logistic(),
        parts=Parts(critic=1.0, source=10.0, cost=0.01),
        change=Unchanged(),
        batch_size=64,
        steps=40_000,
    )
