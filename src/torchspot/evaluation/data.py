"""The data that judges see: opened, and checked against the plan."""

__all__ = ["Opened", "opened"]

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchspot.data.arrays import HeldOut, Rows
from torchspot.data.loaders import IterableSampler
from torchspot.data.sources import as_sampler
from torchspot.errors import InvalidArgument
from torchspot.random import Key, generator
from torchspot.types import Plan, Sampler

_NO_ROWS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Opened:
    """One data set beside the marginal of a plan that it belongs to."""

    sampler: Sampler
    held_out: HeldOut | None
    """The rows that training did not see, where the plan knows them."""
    weighted: bool

    def unseen(self, most: int, key: Key) -> tuple[Float[Tensor, "batch *shape"], bool]:
        """Data in random order, and whether training never saw it.

        The rows that `fit` held out where the source is the one it saw; else all rows; fresh draws of a stream, which
        may be fewer if it ends.
        """
        if not isinstance(self.sampler, Rows):
            fresh = self._fresh(most, key)
            return fresh, len(fresh) == most
        known = self.held_out
        same = known is not None and len(known.rows) > 0 and known.fingerprint == self.sampler.fingerprint()
        rows = known.rows if same and known is not None else _NO_ROWS
        return self.sampler.judges(rows, most, generator(key)), same

    def all(self, most: int, key: Key) -> Float[Tensor, "batch *shape"]:
        """At most so many rows in random order, each once; fresh draws of a stream."""
        if isinstance(self.sampler, Rows):
            return self.sampler.chosen(_NO_ROWS, most, generator(key))
        return self._fresh(most, key)

    @property
    def rows(self) -> Rows | None:
        """The rows, of a source that has rows."""
        return self.sampler if isinstance(self.sampler, Rows) else None

    def _fresh(self, most: int, key: Key) -> Float[Tensor, "batch *shape"]:
        if isinstance(self.sampler, IterableSampler):
            rows = self.sampler.once(most).double().cpu()
            return rows[torch.randperm(len(rows), generator=generator(key))]
        return self.sampler.draw(most, generator(key, self.sampler.device)).double().cpu()


def opened(plan: Plan, sources: Sequence[Any], weights: Sequence[Any] | None) -> list[Opened]:
    """The data sets, or an error where they do not fit the plan."""
    shapes = [tuple(x.shape[1:]) for x in plan.sample(1, 0)]
    if len(sources) != len(shapes):
        raise InvalidArgument(f"the plan has {len(shapes)} marginals, and {len(sources)} data sets were given.")
    weights = [None] * len(sources) if weights is None else list(weights)
    if len(weights) != len(sources):
        raise InvalidArgument(
            f"there are {len(sources)} data sets and {len(weights)} weights. Pass one entry each, or None."
        )
    known = getattr(plan, "held_out", ()) or (None,) * len(sources)
    made = []
    for k, (source, w, rows, shape) in enumerate(zip(sources, weights, known, shapes, strict=True)):
        sampler = as_sampler(source, weights=w, name=f"data set {k + 1}")
        if sampler.shape != shape:
            raise InvalidArgument(
                f"data set {k + 1} has samples of shape {sampler.shape}, and the plan's marginal has {shape}."
            )
        made.append(Opened(sampler, rows, w is not None))
    return made
