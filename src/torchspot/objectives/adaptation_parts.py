"""What DASPOT's judges may minimise beside the critics' loss: each part an option with its weight."""

__all__ = ["ClassAlignment", "DomainAdversary", "PairRisk", "Parts", "SelfTraining", "Translation"]

import math
from dataclasses import dataclass

from torchspot.errors import InvalidArgument


@dataclass(frozen=True)
class PairRisk:
    """E[ℰ(D_Y(G_Y(z)), argmax_k D_X(G_X(z))_k)]: both ends of a generated pair are to have the same label (DA-risk)."""

    weight: float = 1.0
    """η_da."""
    start: float = 0.25
    """In this part of the run the weight is 0, until the generator is worth learning from."""
    confidence: float = 0.0
    """Pairs whose source end is not as sure as this do not count."""

    def __post_init__(self) -> None:
        _check(self.weight, start=self.start, confidence=self.confidence)


@dataclass(frozen=True)
class ClassAlignment:
    """Classes of the target are brought near the frequencies of source draws while the teacher finds them.

    That keeps a class from being lost to another early on. The target's own frequencies may be others, so it is for the
    first steps alone: samples of frequent classes are lost only after some time (`Alignment` has the formula).
    """

    bound: float = 2.3
    """Classes count at most e^bound times as much, or as little, as the teacher says."""
    steps: int = 1000
    """It counts in full in so many steps, at most a third of the run, and no more after half as many again."""

    def __post_init__(self) -> None:
        _check(self.bound)
        if self.steps < 1:
            raise InvalidArgument(f"steps of an alignment must be at least 1, and are {self.steps}.")


@dataclass(frozen=True)
class SelfTraining:
    """A teacher, the average of the judges, labels target samples; where it is sure, the judges learn its labels.

    The teacher sees samples changed a little and the judges see them changed more, so that there is something to
    learn. No target label is ever seen.

    References: "Self-ensembling for visual domain adaptation", G. French, M. Mackiewicz and M. Fisher, 2018;
    "FixMatch: Simplifying semi-supervised learning with consistency and confidence", K. Sohn et al., 2020.
    """

    weight: float = 1.0
    start: float = 0.0
    """In this part of the run the weight is 0."""
    confidence: float = 0.9
    """Samples of which the teacher is less sure do not count."""
    alignment: ClassAlignment | None = None
    """None: classes are as frequent as the teacher says."""

    def __post_init__(self) -> None:
        _check(self.weight, start=self.start, confidence=self.confidence)


@dataclass(frozen=True)
class Translation:
    """G_Y = T(G_X): T also takes real source samples to the target, where a critic of its own holds them to the data.

    Needs a generator with `translate`. One of the undocumented parts of the authors' scripts; with a risk, the couples
    (x, T(x)) know their class.
    """

    weight: float = 1.0
    """Of its critic, in the judges' loss."""
    risk: float = 0.0
    """Of ℰ(D(T(x)), v): how much translated source samples count as labelled target samples."""

    def __post_init__(self) -> None:
        _check(self.weight, self.risk)


@dataclass(frozen=True)
class DomainAdversary:
    """Adversaries tell the domains apart by features of real samples, and the judges make them fail.

    One of the undocumented parts of the authors' scripts.

    Reference: "Domain-Adversarial Training of Neural Networks", Y. Ganin et al., 2016.
    """

    weight: float = 0.1
    shallow: bool = True
    """By the features of the first layers."""
    deep: bool = False
    """By the embedding."""

    def __post_init__(self) -> None:
        _check(self.weight)
        if not (self.shallow or self.deep):
            raise InvalidArgument("a DomainAdversary looks at shallow features, deep ones or both, and this at none.")


@dataclass(frozen=True)
class Parts:
    """How much each part of the judges' loss counts, and what is optional."""

    critic: float = 1.0
    """Of the critics' loss, in the judges' loss."""
    pull: float = 1.0
    """η: of what the critics say, in the generator's loss."""
    source: float = 1.0
    """η_s."""
    cost: float = 0.01
    """Of E ‖D_e(x) − D_e(y)‖²."""
    ground: float = 0.0
    """Of E ‖x − y‖² / dim of standardised samples, which only the generator lowers; it fades to 0 in half of the run.

    At first it says which of several plans is meant; the one with the least E ‖x − y‖² itself need not keep classes.
    """
    pairs: PairRisk | None = None
    teaching: SelfTraining | None = None
    translation: Translation | None = None
    adversary: DomainAdversary | None = None

    def __post_init__(self) -> None:
        if min(self.critic, self.pull, self.source, self.cost, self.ground) < 0:
            raise InvalidArgument(f"weights of losses must be at least 0, and are {self}.")


def _check(*weights: float, **shares: float) -> None:
    for weight in weights:
        if not 0 <= weight < math.inf:
            raise InvalidArgument(f"weights must be at least 0 and finite, and one is {weight}.")
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise InvalidArgument(f"{name} must be from 0 to 1, and is {value}.")
