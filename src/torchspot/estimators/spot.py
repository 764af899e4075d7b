"""SPOT: optimal transport between any number of data sets, by a generator that learns the plan."""

__all__ = ["SPOT"]

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from torchspot import costs, latents
from torchspot.data.arrays import Rows
from torchspot.errors import InvalidArgument
from torchspot.estimators import presets
from torchspot.estimators.anchoring import anchored_networks, bound, conditional_plan, widths
from torchspot.estimators.networks import Builder, moment_start
from torchspot.estimators.presets import Preset
from torchspot.estimators.problem import Problem
from torchspot.estimators.pushforward import Game, PushforwardEstimator
from torchspot.estimators.sizes import Sizes
from torchspot.latents import Anchored, AnchoredDraws, Latent
from torchspot.networks.augmentation import Augmentation
from torchspot.networks.convolutional import are_pictures, pictures
from torchspot.networks.generators import around_affine, separate
from torchspot.networks.lipschitz import Free
from torchspot.objectives.gaussian import AffinePlan
from torchspot.objectives.transport import CONDITIONAL_SLACK, MAP_SLACK, SLACK, marginal_weights, unpaired_weights
from torchspot.plans.conditional import as_arrays
from torchspot.types import Callback, Cost, Engine, Shape

_LATENT_OF_TENSORS, _LATENT_OF_PICTURES, _FEW_PICTURES = 100, latents.pieces(116, 16), 10_000


class SPOT(PushforwardEstimator):
    """Learns a plan that moves samples between data sets at the least expected cost (eq:finalvariant).

    Samples are vectors, or pictures (channels, height, width), which get convolutional networks and another recipe.

    Args:
        cost: function of one batch of each marginal that gives one number a row, differentiable.
        generator: builder `(shapes, rng) -> Module` of the network from noise to the marginals, or a module; if
            anchored, from one flat row (sample, noise) to the *other* marginals; of pictures with values within ±1.
        critics: builder of one module that takes the tuple of samples and gives one value a row for each, or a module.
        latent: the noise; by default Gaussian, as large as the largest marginal (100 for tensors); for pictures
            `latents.pieces(116)`.
            `latents.anchored()` starts from real samples of the first data set, and so learns where each goes.
        marginal_weight: η, one number or one for each marginal; by default three times the cost's Lipschitz constant
            (twice for maps from real samples, five times for such with noise), for pictures twice the mean cost of
            unpaired ones.
        steps: generator steps; by default from the data's dimension.
        batch_size: samples a step; by default from the data's dimension.
        replicas: so many independent runs (weights, mini-batches and noise of their own), computed together.
        preset: how to train; `presets.default()` if None, for anchored plans `presets.anchored()`, with noise
            `presets.conditional()`, for pictures `presets.pictures()`, below 10 000 of them with an augmentation.
        seed: of everything random.
        engine: where and how to train; if None, `Captured()` on a GPU (with `autocast=torch.bfloat16` for pictures)
            and `Eager()` without one.
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
        latent: Latent | Anchored | None = None,
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

    def transform(self, X: Any) -> Any:
        """Where the rows of X, points of the first data set, go: the mean partner of each. As NumPy arrays.

        Needs a plan fitted with `latent=latents.anchored()`. For draws instead of means: `plan_.transport(X, n)`.
        """
        return self._moved(X, 0)

    def inverse_transform(self, Y: Any) -> Any:
        """The same for points of the second data set; needs `latents.anchored(at=1)`, or at=(0, 1) for both."""
        return self._moved(Y, 1)

    def _moved(self, x: Any, start: int) -> Any:
        return as_arrays(self._fitted().barycentric_map(x, start=start))

    def _default_preset(self, problem: Problem) -> Preset:
        if not isinstance(self.latent, Anchored):
            return _for_pictures(problem) if problem.pictures else presets.default()
        return presets.conditional() if bound(self.latent, problem).noise_dim else presets.anchored()

    def _as_pictures(self, shapes: Sequence[Shape]) -> bool:
        return are_pictures(shapes) and not isinstance(self.latent, Anchored)

    def _game(self, preset: Preset, problem: Problem, sizes: Sizes) -> Game:
        latent = _default_latent(problem) if self.latent is None else self.latent
        if not isinstance(latent, Anchored) and not (hasattr(latent, "dim") and hasattr(latent, "draw")):
            raise InvalidArgument(
                f"latent={latent!r} is no latent: it needs `dim` and `draw`. For instance latents.normal(8), or "
                "latents.anchored() with its brackets."
            )
        if isinstance(latent, Anchored):
            latent = bound(latent, problem)
        near = None
        if preset.standardise:
            near = moment_start(self.cost, latent, problem.units, problem.probe, seed=self.seed)
        start = near if preset.warm_start else None
        slack = SLACK
        if isinstance(latent, AnchoredDraws):
            slack = CONDITIONAL_SLACK if latent.noise_dim else MAP_SLACK
        weights = self._given_weights(preset, problem, slack)
        if weights is None and preset.adversarial.scale_free:
            weights = unpaired_weights(self.cost, problem.probe)
        if weights is None:
            plan = None if near is None else problem.coupled(near)
            weights = marginal_weights(self.cost, problem.probe, plan=plan, slack=slack)
        facts: dict[str, Any] = {}
        if preset.adversarial.scale_free:
            facts = {"critics": "logistic"}
        elif self.critics is None and isinstance(preset.control, Free):
            facts = {"critics": "free"}
        if isinstance(latent, AnchoredDraws):
            kind = latent.kind
            held = tuple(k for k in range(len(problem.shapes)) if (k,) != kind.at)
            return Game(
                latent,
                weights.only(held),
                anchored_networks(kind, self.generator, preset, start, sizes.width),
                plan=conditional_plan(latent, problem),
                held=held,
                zoom=widths(problem, held) if latent.noise_dim else (),
                turns=len(kind.at),
                facts=facts | {"anchored": list(kind.at), "noise_dim": latent.noise_dim},
            )
        builder = _networks(preset, start, sizes.width, problem) if self.generator is None else self.generator
        return Game(latent, weights, builder, augmentation=preset.augmentation, facts=facts)


def _for_pictures(problem: Problem) -> Preset:
    """The recipe for pictures; where there are few, critics see them changed."""
    few = any(isinstance(s, Rows) and len(s) < _FEW_PICTURES for s in problem.samplers)
    return replace(presets.pictures(), augmentation=Augmentation(mirror=False)) if few else presets.pictures()


def _default_latent(problem: Problem) -> Latent:
    if problem.pictures:
        return _LATENT_OF_PICTURES
    return latents.normal(problem.dim if all(len(s) == 1 for s in problem.shapes) else _LATENT_OF_TENSORS)


def _networks(preset: Preset, start: AffinePlan | None, width: int, problem: Problem) -> Builder:
    """The preset's generator: of pictures, or around the affine plan if there is one."""
    if problem.pictures:
        return pictures(width, preset.generator_depth)
    if start is not None:
        return around_affine(width, preset.generator_depth, tuple(a.float() for a in start.matrices))
    return separate(width, preset.generator_depth, preset.aligned)
