"""EntropicSPOT: entropic transport by a generator that is a flow, so that the plan's density is known."""

__all__ = ["EntropicSPOT"]

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import torch
from torch import nn

from torchspot import costs, latents
from torchspot.errors import InvalidArgument
from torchspot.estimators import presets
from torchspot.estimators.networks import Builder, build_generator, density_start, in_data_units
from torchspot.estimators.presets import Preset
from torchspot.estimators.problem import Problem
from torchspot.estimators.pushforward import Game, PushforwardEstimator
from torchspot.estimators.sizes import Sizes
from torchspot.networks.generators import Shapes
from torchspot.networks.ode import Flow, Probes, flow
from torchspot.objectives.entropic import SLACK, Entropic, entropic_weights
from torchspot.objectives.gaussian import GaussianPlan
from torchspot.plans import DensityPlan
from torchspot.random import Key, generator
from torchspot.types import Callback, Cost, Engine, Estimate, Shape, Values

_COUPLED, _LARGEST = 16_384, 4096


class EntropicSPOT(PushforwardEstimator):
    """Learns the plan with the least E c + ε E log p between data sets, and its density (section 4 of the paper).

    Args:
        cost: function of one batch of each marginal that gives one number a row, differentiable.
        epsilon: ε > 0, in units of the cost: the larger, the smoother the plan.
        generator: builder of a flow, `networks.ode.flow(width=…, solver=…)`.
        critics: builder of one module that takes the tuple of samples and gives one value a row for each, or a module.
        marginal_weight: η, one number or one for each marginal; by default from the slopes of cost and densities.
        steps: generator steps; by default the preset's, 10 000.
        batch_size: samples a step; by default the preset's, 1024.
        replicas: so many independent runs (weights, mini-batches and noise of their own), computed together.
        preset: how to train; `presets.entropic()` if None.
        seed: of everything random.
        engine: where and how to train; if None, `Captured()` on a GPU and `Eager()` without one.
        callbacks: called at logged steps.

    After `fit`: `plan_` (a `DensityPlan`), `distance_` (its expected cost, without ε), `history_`, `marginal_weights_`
    and `critics_`; of several replicas also `plans_`, and `plan_` pools them.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, Y = rng.normal(size=(500, 1)), rng.normal(size=(500, 1)) + 3
    >>> spot = EntropicSPOT(epsilon=1.0, steps=20, seed=1).fit(X, Y)
    >>> spot.log_density(X[:4], Y[:4]).shape
    torch.Size([4])
    """

    def __init__(
        self,
        *,
        cost: Cost = costs.squared_euclidean,
        epsilon: float = 1.0,
        generator: Builder | nn.Module | None = None,
        critics: Builder | nn.Module | None = None,
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
        self.epsilon = epsilon
        self.generator = generator
        self.critics = critics
        self.marginal_weight = marginal_weight
        self.steps = steps
        self.batch_size = batch_size
        self.replicas = replicas
        self.preset = preset
        self.seed = seed
        self.engine = engine
        self.callbacks = callbacks

    def log_density(self, *xs: Any) -> Values:
        """log p(x_1, …, x_m) of the fitted plan, one number for each row."""
        return self._fitted().log_density(*xs)

    def marginal_density(self, i: int, x: Any) -> Values:
        """The density of marginal i (from 0) of the fitted plan at these points, by quadrature over the others."""
        return self._fitted().marginal_density(i, x)

    def entropy(self, n: int = 20_000) -> Estimate:
        """−E log p of the fitted plan, from n draws, with its Monte-Carlo error."""
        return self._fitted().entropy(n)

    def _default_preset(self, problem: Problem) -> Preset:
        return presets.entropic()

    def _as_pictures(self, shapes: Sequence[Shape]) -> bool:
        return False

    def _game(self, preset: Preset, problem: Problem, sizes: Sizes) -> Game:
        epsilon = _check_epsilon(self.epsilon)
        if preset.adversarial.scale_free:
            raise InvalidArgument(
                "EntropicSPOT needs critics that measure W1: give a preset with adversarial=Wasserstein()."
            )
        dim = sum(map(math.prod, problem.shapes))
        if dim > _LARGEST:
            raise InvalidArgument(
                f"EntropicSPOT takes joint samples of at most {_LARGEST} numbers, and these have {dim}. Reduce their "
                "dimension first (principal components, an embedding), or use SPOT without a density."
            )
        start = density_start(self.cost, problem.units, problem.probe, epsilon=epsilon, seed=self.seed)
        builder = _flow(self.generator, preset, sizes, start)
        latent = latents.normal(dim)
        weights = self._given_weights(preset, problem, SLACK)
        if weights is None:
            z = torch.randn(_COUPLED, dim, generator=generator(Key(self.seed, "slopes")), dtype=torch.float64)
            coupled = in_data_units(start, z, problem.units)
            weights = entropic_weights(self.cost, problem.probe, coupled=coupled, epsilon=epsilon)
        tried = build_generator(builder, Shapes(dim, problem.shapes), self.seed)
        return Game(
            latent=latent,
            weights=weights,
            networks=builder,
            objective=lambda transport: Entropic(transport, epsilon),
            plan=DensityPlan.of_flow,
            beside_z=_probes(tried, dim),
            facts={"epsilon": epsilon, "flow": str(tried)},
        )


def _check_epsilon(epsilon: Any) -> float:
    value = float(epsilon) if isinstance(epsilon, Real) else math.nan
    if not (math.isfinite(value) and value > 0):
        raise InvalidArgument(
            f"epsilon must be a finite number above 0, and is {epsilon!r}. Without entropy the plan has no density: "
            "for that use SPOT(cost=…)."
        )
    return value


def _flow(given: Builder | nn.Module | None, preset: Preset, sizes: Sizes, start: GaussianPlan) -> Builder | nn.Module:
    """The user's flow or the preset's, with the start where there is to be one and none was given."""
    builder = flow(sizes.width) if given is None else given
    if preset.warm_start and isinstance(builder, flow) and builder.start is None:
        return replace(builder, start=start.root.float())
    return builder


def _probes(network: nn.Module, dim: int) -> tuple[Probes, ...]:
    """What the loss of this flow draws beside z."""
    if not isinstance(network, Flow):
        raise InvalidArgument(
            f"EntropicSPOT needs a generator whose density is known, and this one is a {type(network).__name__}. "
            "Give generator=networks.ode.flow(width=…)."
        )
    return (Probes(dim, network.probes),) if network.probes else ()
