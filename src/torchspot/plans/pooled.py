"""Several runs of one problem as one plan."""

__all__ = ["PooledPlan", "pooled"]

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchspot.data.arrays import HeldOut
from torchspot.errors import InvalidArgument
from torchspot.plans.conditional import ConditionalPlan, Partners, as_partners
from torchspot.plans.density import DensityPlan, entropy_of
from torchspot.plans.pushforward import COSTED, NO_MAP, PICTURES_COSTED, PushforwardPlan
from torchspot.plans.saving import save
from torchspot.random import Key, fresh_seed, generator
from torchspot.types import Cost, Estimate, Samples, Values

_SPREAD = 20_000


@dataclass(frozen=True)
class PooledPlan:
    """Independent runs of one problem as one plan: each joint sample comes from one of them, all alike likely."""

    plans: tuple[PushforwardPlan, ...]

    def __post_init__(self) -> None:
        if len({(plan.shapes, plan.cost, plan.latent, type(plan.generator.generator)) for plan in self.plans}) != 1:
            raise InvalidArgument(
                "a pooled plan needs plans of the same problem: same shapes, cost, latent and network."
            )

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of one sample of each marginal."""
        return self.plans[0].shapes

    @property
    def cost(self) -> Cost:
        """The transport cost."""
        return self.plans[0].cost

    @property
    def held_out(self) -> tuple[HeldOut | None, ...]:
        """For each marginal, the rows that training did not see; None for a source without rows."""
        return self.plans[0].held_out

    @property
    def facts(self) -> dict[str, Any]:
        """How the plans were made."""
        return self.plans[0].facts | {"replicas": len(self.plans)}

    def sample(self, n: int, seed: int | None = None) -> Samples:
        """n joint samples: row k of all marginals belongs together. Without a seed, new ones each time."""
        return self._mixed(n, seed, lambda plan, count, s: plan.sample(count, s))

    def made(self, k: int, n: int, seed: int | None = None) -> Float[Tensor, "batch *shape"]:
        """n samples of marginal k alone, by which it is judged."""
        return self._mixed(n, seed, lambda plan, count, s: (plan.made(k, count, s),))[0]

    @property
    def of_pictures(self) -> bool:
        """Whether samples are pictures."""
        return self.plans[0].of_pictures

    def expected_cost(self, n: int | None = None, seed: int = 0) -> Estimate:
        """The mean of E c(G(z)) over the runs from n draws in all, with its Monte-Carlo error."""
        total = (PICTURES_COSTED if self.of_pictures else COSTED) if n is None else n
        each = self._each(max(2, total // len(self.plans)), seed)
        error = math.sqrt(math.fsum(e.monte_carlo_error**2 for e in each)) / len(each)
        return Estimate(math.fsum(e.value for e in each) / len(each), error)

    def spread(self, n: int | None = None, seed: int = 0) -> float:
        """Standard deviation of E c(G(z)) over the runs, with the noise of measuring each by n draws taken off."""
        each = self._each((PICTURES_COSTED if self.of_pictures else _SPREAD) if n is None else n, seed)
        noise = statistics.fmean(e.monte_carlo_error**2 for e in each)
        return math.sqrt(max(0.0, statistics.variance(e.value for e in each) - noise))

    def log_density(self, *xs: Any) -> Values:
        """The log of the mean density of the runs, where they have one."""
        each = torch.stack([plan.log_density(*xs) for plan in self._with_density()])
        return each.logsumexp(0) - math.log(len(each))

    def marginal_density(self, i: int, x: Any) -> Values:
        """The mean over the runs."""
        return torch.stack([plan.marginal_density(i, x) for plan in self._with_density()]).mean(0)

    def entropy(self, n: int = 20_000, seed: int = 0) -> Estimate:
        """−E log p from n draws, with its Monte-Carlo error."""
        return entropy_of(self, n, seed)

    def transport(self, x: Any, n: int = 1, *, start: int = 0, seed: int | None = None) -> Partners:
        """Partners of points, where the runs know them: each partner comes from one of the runs."""
        if n < 1:
            raise InvalidArgument(f"transport(x, n) needs n >= 1, and got {n}.")
        plans = self._conditional()
        points = plans[0].points(x, start)
        plans[0].warn_outside(points, start)
        rng = generator(Key(fresh_seed() if seed is None else seed, "pool"))
        seeds = torch.randint(2**62, (len(plans),), generator=rng).tolist()
        run = torch.randint(len(plans), (len(points) * n,), generator=rng)
        repeated, order = points.repeat_interleave(n, dim=0), run.argsort(stable=True)
        parts = [
            plan.partners(repeated[run == k], 1, start=start, seed=s)
            for k, (plan, s) in enumerate(zip(plans, seeds, strict=True))
            if bool((run == k).any())
        ]
        back = order.argsort()
        joined = [torch.cat(xs)[back.to(xs[0].device)] for xs in zip(*parts, strict=True)]
        return as_partners([x.view(-1, n, *x.shape[2:]) for x in joined], n)

    def inverse(self, y: Any, n: int = 1, *, seed: int | None = None) -> Partners:
        """Partners of points of the second marginal."""
        return self.transport(y, n, start=1, seed=seed)

    def barycentric_map(self, x: Any, n: int = 256, *, start: int = 0) -> Partners:
        """The mean partner of each point, over the runs and n draws of each."""
        if n < 1:
            raise InvalidArgument(f"barycentric_map(x, n) needs n >= 1, and got {n}.")
        plans = self._conditional()
        points = plans[0].points(x, start)
        plans[0].warn_outside(points, start)
        each = [plan.mean_partners(points, n, start=start) for plan in plans]
        return as_partners([torch.stack(xs).mean(0) for xs in zip(*each, strict=True)], 1)

    def without_support(self) -> "PooledPlan":
        """The same without the rows of the data that `outside` compares with."""
        return PooledPlan(tuple(plan.without_support() for plan in self._conditional()))

    def outside(self, x: Any, *, start: int = 0) -> Values:
        """How far each point lies from the data of its marginal."""
        return self._conditional()[0].outside(x, start=start)

    def _mixed(self, n: int, seed: int | None, draw: Callable[[PushforwardPlan, int, int], Samples]) -> Samples:
        """n rows, each by one of the runs."""
        if n < 1:
            raise InvalidArgument(f"sample(n) needs n >= 1, and got {n}.")
        rng = generator(Key(fresh_seed() if seed is None else seed, "pool"))
        run = torch.randint(len(self.plans), (n,), generator=rng)
        seeds = torch.randint(2**62, (len(self.plans),), generator=rng).tolist()
        counts = torch.bincount(run, minlength=len(self.plans)).tolist()
        drawn = [draw(plan, count, s) for plan, count, s in zip(self.plans, counts, seeds, strict=True) if count]
        place = run.argsort(stable=True).argsort()
        return tuple(torch.cat(parts)[place.to(parts[0].device)] for parts in zip(*drawn, strict=True))

    def _conditional(self) -> list[ConditionalPlan]:
        plans = [plan for plan in self.plans if isinstance(plan, ConditionalPlan)]
        if not plans:
            raise InvalidArgument(NO_MAP)
        return plans

    @property
    def has_density(self) -> bool:
        """Whether the runs are entropic."""
        return all(isinstance(plan, DensityPlan) for plan in self.plans)

    def _with_density(self) -> list[DensityPlan]:
        if not self.has_density:
            raise InvalidArgument("this plan has no density. Fit one that has: EntropicSPOT(epsilon=…).fit(X, Y).")
        return [plan for plan in self.plans if isinstance(plan, DensityPlan)]

    def _each(self, n: int, seed: int) -> list[Estimate]:
        return [plan.expected_cost(n, seed + k) for k, plan in enumerate(self.plans)]

    def save(self, path: str | Path) -> Path:
        """Writes one file with all runs (safetensors with JSON in its header), atomically."""
        return save(Path(path), self.plans)


def pooled(plans: tuple[PushforwardPlan, ...]) -> PushforwardPlan | PooledPlan:
    """Several runs as one plan; a single one as it is."""
    return plans[0] if len(plans) == 1 else PooledPlan(plans)
