"""The plan of a generator that starts from real samples: it can be asked where a point goes."""

__all__ = ["ConditionalPlan", "Partners", "as_arrays", "as_partners"]

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchspot.data.points import as_points
from torchspot.errors import InvalidArgument
from torchspot.latents import AnchoredDraws
from torchspot.networks.anchored import AnchoredGenerator
from torchspot.plans.pushforward import PushforwardPlan
from torchspot.plans.support import Support
from torchspot.random import Key, fresh_seed, generator
from torchspot.types import Samples, Values

_CHUNK = 1 << 16
_AVERAGED = 256
_CHECKED = 10_000
_OUTSIDE, _STRAY, _FAR = 1.5, 1e-3, 3.0
"""Beyond the first a point counts as outside; a few in a thousand are let pass, unless one is beyond the last."""

Partners = Tensor | Samples
"""Of points: a tensor where there is one other marginal, a tuple with one for each where there are more."""


@dataclass(frozen=True, repr=False)
class ConditionalPlan(PushforwardPlan):
    """(x, T(x, noise)) with x from the data: given a point of one marginal, its partners in the others.

    A plan anchored at marginal 0 answers `transport(x)`, one anchored at marginal 1 `inverse(y)`, one anchored at both
    either. Without noise the partner is a function of the point: a map.
    """

    latent: AnchoredDraws
    support: tuple[Support, ...] = ()
    """Of each anchor: where its data lies."""

    def transport(self, x: Any, n: int = 1, *, start: int = 0, seed: int | None = None) -> Partners:
        """Partners of points that the plan may never have seen, drawn from the plan given the point.

        Args:
            x: points of marginal `start`, one a row: an array, tensor, table or file.
            n: how many partners of each. One gives a tensor (rows, …), more give (rows, n, …).
            start: the marginal that the points belong to, counted from 0.
            seed: for the same partners again; a map without noise needs none.

        Warns of points far outside the data. Of more than two marginals, a tuple with the partners in each other one.
        """
        if n < 1:
            raise InvalidArgument(f"transport(x, n) needs n >= 1, and got {n}.")
        points = self.points(x, start)
        self.warn_outside(points, start)
        return as_partners(self.partners(points, n, start=start, seed=fresh_seed() if seed is None else seed), n)

    def made(self, k: int, n: int, seed: int | None = None) -> Float[Tensor, "batch *shape"]:
        """n samples of marginal k alone. Of several anchors, without the rows of its own data that it starts from."""
        several = len(self.latent.kind.at) > 1
        draws = self._draws(2 * n if several else n, fresh_seed() if seed is None else seed)
        return torch.cat([self._anchored.made(xs)[k] for xs in draws])[:n]

    def inverse(self, y: Any, n: int = 1, *, seed: int | None = None) -> Partners:
        """Partners of points of the second marginal: `transport` with `start=1`."""
        return self.transport(y, n, start=1, seed=seed)

    def barycentric_map(self, x: Any, n: int = _AVERAGED, *, start: int = 0) -> Partners:
        """The mean partner of each point, over n draws where there is noise; always the same."""
        if n < 1:
            raise InvalidArgument(f"barycentric_map(x, n) needs n >= 1, and got {n}.")
        points = self.points(x, start)
        self.warn_outside(points, start)
        return as_partners(self.mean_partners(points, n, start=start), 1)

    def outside(self, x: Any, *, start: int = 0) -> Values:
        """How far each point lies from the data of its marginal: 1 is as far as any row of the data lay from others.

        The distance to the nearest of some thousand training rows, over the largest such distance of other rows.
        """
        if not self.support:
            raise InvalidArgument("this plan was stripped of its support, so it cannot say what lies outside the data.")
        return self._outside(self.points(x, start), start)

    def without_support(self) -> "ConditionalPlan":
        """The same without the rows of the data that `outside` compares with, for files that must hold no data."""
        return replace(self, support=())

    def points(self, x: Any, start: int) -> Tensor:
        """Points of an anchor's marginal, checked."""
        if not 0 <= start < len(self.shapes):
            raise InvalidArgument(f"there are {len(self.shapes)} marginals, counted from 0, and start is {start}.")
        if start not in self.latent.kind.at:
            at = " and ".join(str(a) for a in self.latent.kind.at)
            raise InvalidArgument(
                f"this plan knows partners of points of marginal {at} (counted from 0), not of marginal {start}. "
                f"Fit one that does: SPOT(latent=latents.anchored(at={start})), or at=(0, 1) for both directions."
            )
        return as_points(x, self.shapes[start], f"points of marginal {start}")

    @torch.no_grad()
    def partners(self, points: Tensor, n: int, *, start: int, seed: int) -> list[Tensor]:
        """n of each point, (rows, n, …), in each of the other marginals."""
        rng = generator(Key(seed, "transport"), self.generator.units.scale.device)
        parts = [
            self._started(rows, self.latent.noise(len(rows) * n, rng), start)
            for rows in torch.split(points, max(1, _CHUNK // n))
        ]
        return [torch.cat(xs) for xs in zip(*parts, strict=True)]

    @torch.no_grad()
    def mean_partners(self, points: Tensor, n: int, *, start: int) -> list[Tensor]:
        """The mean over the same n draws of noise for every point, (rows, 1, …); memory does not grow with n rows."""
        n = n if self.latent.noise_dim else 1
        noise = self.latent.noise(n, generator(Key(0, "mean partner"), self.generator.units.scale.device))
        means = [
            [x.mean(1, keepdim=True) for x in self._started(rows, noise.repeat(len(rows), 1), start)]
            for rows in torch.split(points, max(1, _CHUNK // n))
        ]
        return [torch.cat(xs) for xs in zip(*means, strict=True)]

    def warn_outside(self, points: Tensor, start: int) -> None:
        """Says so if points lie far from the data; looks at no more than 10 000 of them."""
        if not self.support:
            return
        checked = points[:: max(1, -(-len(points) // _CHECKED))]
        far = self._outside(checked, start)
        count = int((far > _OUTSIDE).sum())
        if count > _STRAY * len(checked) or float(far.max()) > _FAR:
            among = f"{count} of {len(checked)} points" + (" looked at" if len(checked) < len(points) else "")
            warnings.warn(
                f"{among} lie outside the data that the plan was learned from: the farthest is {float(far.max()):.1f} "
                "times as far from the training rows as any row of the data was. Their partners are extrapolated.",
                stacklevel=3,
            )

    @property
    def _anchored(self) -> AnchoredGenerator:
        network = self.generator.generator
        assert isinstance(network, AnchoredGenerator)
        return network

    def _started(self, points: Tensor, noise: Float[Tensor, "draws noise"], start: int) -> list[Tensor]:
        """Partners of each point, as many as there is noise for it, (rows, n, …), in each of the other marginals."""
        units, n = self.generator.units, len(noise) // len(points)
        repeated = points.to(units.scale.device, units.data_dtype).repeat_interleave(n, dim=0)
        (u,) = units.from_data((repeated,), (start,))
        noise = noise.to(units.dtype)
        made = units.to_data(self._anchored.started(self.latent.kind.at.index(start), u.flatten(1), noise))
        return [x.reshape(-1, n, *x.shape[1:]) for k, x in enumerate(made) if k != start]

    def _outside(self, points: Tensor, start: int) -> Values:
        units = self.generator.units
        (u,) = units.from_data((points.to(units.scale.device, units.data_dtype),), (start,))
        return self.support[self.latent.kind.at.index(start)].distance(u.flatten(1))


def as_partners(xs: list[Tensor], n: int) -> Partners:
    """As users see them: without the dimension of a single draw, and without the tuple of a single marginal."""
    flat = tuple(x.squeeze(1) if n == 1 else x for x in xs)
    return flat[0] if len(flat) == 1 else flat


def as_arrays(partners: Partners) -> np.ndarray | tuple[np.ndarray, ...]:
    """The same as NumPy arrays."""
    if isinstance(partners, Tensor):
        return partners.cpu().numpy()
    return tuple(x.cpu().numpy() for x in partners)
