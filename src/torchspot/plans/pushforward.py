"""The plan of a generator: the law of G(z)."""

__all__ = ["COSTED", "NO_MAP", "PICTURES_COSTED", "PushforwardPlan"]

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchspot.data.arrays import HeldOut
from torchspot.errors import InvalidArgument
from torchspot.latents import Latent
from torchspot.networks.convolutional import are_pictures
from torchspot.networks.generators import InDataUnits
from torchspot.plans.saving import save
from torchspot.random import Key, fresh_seed, generator
from torchspot.types import Cost, Estimate, Samples

_CHUNK, _PICTURES_AT_ONCE = 1 << 16, 256
COSTED, PICTURES_COSTED = 100_000, 1024
"""Draws by which a cost is known, if nobody says how many."""
NO_MAP = (
    "this plan pairs samples of its own and cannot tell the partner of a given point. "
    "Fit one that can: SPOT(cost=…, latent=latents.anchored()).fit(X, Y)."
)
"""What is said where a point's partner is asked of a plan that draws noise."""


@dataclass(frozen=True, repr=False)
class PushforwardPlan:
    """The law of G(z): a coupling of the marginals, drawn from by mapping noise."""

    generator: InDataUnits
    latent: Latent
    cost: Cost
    held_out: tuple[HeldOut | None, ...] = ()
    """For each marginal, the rows that training did not see; None for a source without rows."""
    facts: dict[str, Any] = field(default_factory=dict)
    """How the plan was made: η and where it came from, steps, seed. Plain JSON values."""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of one sample of each marginal."""
        return tuple(tuple(mean.shape) for mean in self.generator.units.means)

    @property
    def of_pictures(self) -> bool:
        """Whether samples are pictures."""
        return are_pictures(self.shapes)

    def __repr__(self) -> str:
        shapes = ", ".join(map(str, self.shapes))
        return f"{type(self).__name__}(samples of shapes {shapes}; cost {self.cost}; {self.facts.get('steps')} steps)"

    def sample(self, n: int, seed: int | None = None) -> Samples:
        """n joint samples: row k of all marginals belongs together. Without a seed, new ones each time."""
        if n < 1:
            raise InvalidArgument(f"sample(n) needs n >= 1, and got {n}.")
        parts = zip(*self._draws(n, fresh_seed() if seed is None else seed), strict=True)
        return tuple(torch.cat(part) for part in parts)

    def made(self, k: int, n: int, seed: int | None = None) -> Float[Tensor, "batch *shape"]:
        """n samples of marginal k alone, by which it is judged."""
        return self.sample(n, seed)[k]

    def transport(self, x: Any, n: int = 1, *, start: int = 0, seed: int | None = None) -> Any:
        """Partners of given points, where the plan starts from real samples."""
        raise InvalidArgument(NO_MAP)

    def barycentric_map(self, x: Any, n: int = 256, *, start: int = 0) -> Any:
        """The mean partner of each point, where the plan starts from real samples."""
        raise InvalidArgument(NO_MAP)

    def expected_cost(self, n: int | None = None, seed: int = 0) -> Estimate:
        """E c(G(z)) from n draws (100 000, of pictures 1024), with its Monte-Carlo error."""
        n = (PICTURES_COSTED if self.of_pictures else COSTED) if n is None else n
        if n < 2:
            raise InvalidArgument(f"expected_cost(n) needs n >= 2, and got {n}.")
        with torch.no_grad():
            values = torch.cat([self.cost(*xs).double() for xs in self._draws(n, seed)])
        return Estimate(float(values.mean()), float(values.std()) / math.sqrt(n))

    def save(self, path: str | Path) -> Path:
        """Writes one file (safetensors with JSON in its header), atomically. A folder gets a plan.safetensors.

        The file of a plan that starts from real samples holds some thousand of them, standardised, to tell what lies
        outside the data; `without_support().save(path)` leaves them out.
        """
        return save(Path(path), (self,))

    @torch.no_grad()
    def _draws(self, n: int, seed: int) -> Iterator[Samples]:
        units = self.generator.units
        rng = generator(Key(seed, "sample"), units.scale.device)
        chunk = _PICTURES_AT_ONCE if self.of_pictures else _CHUNK
        for start in range(0, n, chunk):
            yield self.generator(self.latent.draw(min(chunk, n - start), rng).to(units.dtype))
