"""Recipes: everything about training that is not the problem itself."""

__all__ = [
    "AdaptationPreset",
    "Bursts",
    "Preset",
    "adaptation",
    "adaptation_of_vectors",
    "adaptation_paper",
    "adaptation_reference",
    "anchored",
    "clipping",
    "conditional",
    "default",
    "entropic",
    "free_potential",
    "paper",
    "pictures",
]

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from torchspot.errors import InvalidArgument
from torchspot.estimators.adapting import (
    AdaptationPreset,
    adaptation,
    adaptation_of_vectors,
    adaptation_paper,
    adaptation_reference,
)
from torchspot.estimators.sizes import Sizes
from torchspot.networks.augmentation import Augmentation
from torchspot.networks.lipschitz import Clipping, Control, Free, OperatorNorm, Orthogonal, SpectralNorm
from torchspot.objectives.adversarial import Adversarial, Logistic, Wasserstein
from torchspot.training.optimizers import Adam, OptimisticAdam, Optimizer
from torchspot.training.schedules import Constant, Cosine, Schedule

_FULL_RATE = 2e-3
_SIZES = ((4, Sizes(64, 512, 5000)), (32, Sizes(128, 512, 8000)), (math.inf, Sizes(256, 2048, 10_000)))
"""For dimensions up to the first number."""
_OF_PICTURES = {True: Sizes(64, 128, 20_000), False: Sizes(16, 32, 6000)}
"""On a GPU, and on a CPU, where the others would take a day."""
_WHOLE_NUMBERS = (
    "generator_steps",
    "width",
    "generator_depth",
    "critic_depth",
    "batch_size",
    "steps",
)


@dataclass(frozen=True)
class Bursts:
    """Critic steps that are more at the start and now and then, so that critics are near their best there."""

    usual: int = 5
    more: int = 10
    first: int = 25
    """So many generator steps at the start have more."""
    every: int = 500
    """And every so many."""

    def __post_init__(self) -> None:
        if min(self.usual, self.more, self.every) < 1 or self.first < 0:
            raise InvalidArgument(f"critic_steps must be at least 1, and their bursts are {self}.")

    def __call__(self, step: int) -> int:
        return self.more if step < self.first or step % self.every == 0 else self.usual


@dataclass(frozen=True)
class Preset:
    """One recipe. `presets.default()`, `presets.paper()` and `presets.clipping()` make them."""

    learning_rate: float
    """Of the generator, at its highest."""
    critic_learning_rate: float
    """Of the critics, at its highest."""
    full_rate_width: int | None
    """Networks wider than this take rates smaller by √(this / width); None: all take the same."""
    optimizer: Callable[[float, tuple[float, float], Schedule], Optimizer]
    """The class, for both players."""
    betas: tuple[float, float]
    """Adam's two decays."""
    schedule: Schedule
    """How both rates move."""
    rise: float
    """In this part of the run the generator's rate rises from 0, so that critics are ahead of it; 0: it does not."""
    averaging: float
    """Decay of the exponential average of the generator that becomes the plan; 0 takes the last iterate."""
    critic_steps: int | Bursts
    """Steps of the critics before each turn of the generator."""
    generator_steps: int
    """Steps of the generator in its turn."""
    control: Control
    """What keeps the critics Lipschitz."""
    adversarial: Adversarial
    """What the critics are asked."""
    augmentation: Augmentation | None
    """Through which critics see pictures."""
    marginal_weight: float | None
    """η; None takes it from the cost's Lipschitz constant, or if critics are logistic from the cost of unpaired
    samples."""
    width: int | None
    """Units in each hidden layer (of networks for pictures, channels at full size); None takes it from the data's
    dimension."""
    generator_depth: int
    """Hidden layers of each network of the generator."""
    critic_depth: int
    """Hidden layers of each critic."""
    warm_start: bool
    """Whether the generator starts at the optimal plan of Gaussians with the data's moments."""
    standardise: bool
    """Whether networks see the data standardised; if not, as it is. (Pictures they always see within ±1.)"""
    aligned: bool
    """Whether, without a warm start, the networks of the generator start with equal weights."""
    batch_size: int | None
    """Samples a step; None takes it from the data's dimension."""
    steps: int | None
    """Generator steps; None takes them from the data's dimension."""

    def __post_init__(self) -> None:
        if not (self.learning_rate > 0 and self.critic_learning_rate > 0):
            raise InvalidArgument(
                f"learning rates must be above 0, and are {self.learning_rate} and {self.critic_learning_rate}."
            )
        if not 0 <= self.averaging < 1:
            raise InvalidArgument(f"averaging must be at least 0 and below 1, and is {self.averaging}.")
        if not 0 <= self.rise < 1:
            raise InvalidArgument(f"rise must be at least 0 and below 1, and is {self.rise}.")
        if self.warm_start and not self.standardise:
            raise InvalidArgument("warm_start needs standardise=True. Set warm_start=False to take the data as it is.")
        if not self.critic_repeats(1) >= 1:
            raise InvalidArgument(f"critic_steps must be at least 1, and is {self.critic_steps}.")
        for name in _WHOLE_NUMBERS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidArgument(f"{name} must be at least 1, and is {value}.")

    def critic_repeats(self, step: int) -> int:
        """Steps of the critics in this step of the game."""
        return self.critic_steps(step) if isinstance(self.critic_steps, Bursts) else self.critic_steps

    def rates(self, width: int) -> tuple[float, float]:
        """Of the generator and of the critics, for networks of this width.

        E c(G) is low by an amount that grows with the rate and with the width: at 256 units a layer section 5.1 came
        out .9 % low with 2·10⁻³ and .06 % with 10⁻³.
        """
        factor = 1.0 if self.full_rate_width is None else min(1.0, math.sqrt(self.full_rate_width / width))
        return factor * self.learning_rate, factor * self.critic_learning_rate

    def sizes(self, dim: int, *, pictures: bool = False, gpu: bool = False) -> Sizes:
        """Width, batch and steps for data of this dimension: wider, larger and longer as it grows; or for pictures."""
        usual = _OF_PICTURES[gpu] if pictures else next(sizes for most, sizes in _SIZES if dim <= most)
        given = (self.width, self.batch_size, self.steps)
        return Sizes(*(default if value is None else value for value, default in zip(given, usual, strict=True)))


def default(learning_rate: float = _FULL_RATE) -> Preset:
    """The recipe that works: orthogonal critics, optimistic Adam, a falling rate, an averaged generator, exact η.

    A smaller learning rate is the generator's only: with critics as slow as itself the game turns in circles, which
    optimism damps the less the smaller the steps are.
    """
    return Preset(
        learning_rate=learning_rate,
        critic_learning_rate=2.5 * max(learning_rate, _FULL_RATE),
        full_rate_width=64,
        optimizer=OptimisticAdam,
        betas=(0.5, 0.99),
        schedule=Cosine(),
        rise=0.1,
        averaging=0.999,
        critic_steps=1,
        generator_steps=1,
        control=Orthogonal(),
        adversarial=Wasserstein(),
        augmentation=None,
        marginal_weight=None,
        width=None,
        generator_depth=3,
        critic_depth=3,
        warm_start=True,
        standardise=True,
        aligned=True,
        batch_size=None,
        steps=None,
    )


def anchored(learning_rate: float = _FULL_RATE) -> Preset:
    """The recipe for maps (`latents.anchored` without noise): the default one, averaged over less.

    With one marginal exact the game turns less, and a long average lags: in two dimensions costs came out 4 % low.
    """
    return replace(default(learning_rate), averaging=0.997)


def conditional(learning_rate: float = 1e-3) -> Preset:
    """The recipe for anchored plans with noise: the default one, longer, without momentum, with more of the critics.

    Partners that huddle together make a plan cheaper, and only critics that look closely notice: with one critic step
    of five atoms to a Gaussian some had half the spread they should have.
    """
    return replace(default(learning_rate), betas=(0.0, 0.99), critic_steps=2, steps=8000)


def free_potential(learning_rate: float = 1e-3) -> Preset:
    """The recipe for anchored plans with a potential of any steepness instead of critics that are 1-Lipschitz.

    sup_f inf_T E[c(x, T(x)) − f(T(x))] + E f(y) needs no η. It is the better one where the map is smooth and nearly
    linear, and the less steady one: the generator takes five steps to each of the potential, and yet one run of 48
    went astray.
    """
    return replace(
        anchored(learning_rate),
        critic_learning_rate=learning_rate,
        control=Free(),
        marginal_weight=1.0,
        generator_steps=5,
        steps=4000,
    )


def entropic(learning_rate: float = _FULL_RATE) -> Preset:
    """The recipe for flows (`EntropicSPOT`): the default one, longer, with larger batches and without momentum.

    A density shows ripples that a distance does not; momentum and small batches make them.
    """
    return replace(default(learning_rate), betas=(0.0, 0.99), averaging=0.998, batch_size=1024, steps=10_000)


def pictures(learning_rate: float = 1e-3) -> Preset:
    """The recipe for pictures: convolutions whose operators are normalised, and critics that tell real from made.

    W1 between pictures hardly sees texture, so critics are asked which law a picture is from (`Logistic`), and η is
    twice the mean cost of unpaired pictures. `augmentation=Augmentation()` helps where there are few thousand. Where
    a GPU is at hand networks are wider, batches larger and runs longer; the rate is that of the narrow ones.
    """
    return replace(
        default(learning_rate),
        critic_learning_rate=learning_rate,
        full_rate_width=16,
        averaging=0.999,
        control=OperatorNorm(),
        adversarial=Logistic(4.0),
        generator_depth=2,
        rise=0.0,
    )


def paper(learning_rate: float = 1e-3) -> Preset:
    """Section 5.1 as printed: spectral norm, η = 10⁴, width 8, Adam (.5, .999) at a constant rate, batch 100.

    The paper does not say how many critic steps; 5 is what the authors' scripts for images do.
    """
    return Preset(
        learning_rate=learning_rate,
        critic_learning_rate=learning_rate,
        full_rate_width=None,
        optimizer=Adam,
        betas=(0.5, 0.999),
        schedule=Constant(),
        rise=0.0,
        averaging=0.0,
        critic_steps=5,
        generator_steps=1,
        control=SpectralNorm(),
        adversarial=Wasserstein(),
        augmentation=None,
        marginal_weight=1e4,
        width=8,
        generator_depth=2,
        critic_depth=1,
        warm_start=False,
        standardise=False,
        aligned=False,
        batch_size=100,
        steps=20_000,
    )


def clipping(learning_rate: float = 1e-3, bound: float = 0.01) -> Preset:
    """The paper's recipe with weight clipping instead of spectral norm, as in the authors' scripts."""
    return replace(paper(learning_rate), control=Clipping(bound))
