"""The data as training sees it: samplers, rows held out, units, and samples to judge by."""

__all__ = ["Problem", "is_repeatable", "pose"]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchspot.data.arrays import HeldOut, Rows, held_out_rows
from torchspot.data.sources import as_sampler, check_order
from torchspot.discrepancies import random_directions, w2_along
from torchspot.errors import InvalidArgument
from torchspot.networks.convolutional import are_pictures
from torchspot.networks.generators import Units
from torchspot.objectives.gaussian import AffinePlan
from torchspot.random import Key, generator
from torchspot.training.ranks import ranks_of
from torchspot.training.streams import apart, joint, let_go, opening
from torchspot.types import Cost, Engine, Sampler, Samples, Shape

_PROBE, _PROBE_A_NUMBER, _LARGEST_PROBE, _PROBE_NUMBERS = 16_384, 2048, 65_536, 1 << 25
_JUDGES, _JUDGED_PICTURES = 2048, 256
_PROJECTIONS = 32


@dataclass(frozen=True)
class Problem:
    """Two or more data sets, ready to be drawn from."""

    samplers: tuple[Sampler, ...]
    held_out: tuple[HeldOut | None, ...]
    units: Units
    probe: Samples
    """Some samples of each marginal, to size things by."""
    judges: Samples
    """Standardised samples that training does not see (or, of fewer than 100 rows, all of them)."""
    directions: tuple[Tensor, ...]
    """Along which they are compared with generated samples."""
    pictures: bool
    """Whether networks are to take them as pictures."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Of one sample of each marginal."""
        return tuple(sampler.shape for sampler in self.samplers)

    @property
    def dim(self) -> int:
        """Numbers in the largest sample."""
        return max(map(math.prod, self.shapes))

    @property
    def unrepeatable(self) -> list[int]:
        """Numbers of the data sets that do not give the same when they are drawn again."""
        return [k + 1 for k, sampler in enumerate(self.samplers) if not is_repeatable(sampler)]

    @property
    def judged(self) -> int:
        """Samples in the largest set of judges."""
        return max(map(len, self.judges))

    @property
    def fingerprints(self) -> list[str]:
        """What tells this data from other data."""
        return ["stream" if rows is None else rows.fingerprint for rows in self.held_out]

    def close(self) -> None:
        """Lets go of what samples are read by; the next draw begins again."""
        let_go(*self.samplers)

    def coupled(self, plan: AffinePlan) -> Samples:
        """Samples of the first marginal with the partners that this plan (of standardised samples) gives them."""
        first = self.units.from_data(self.probe)[0]
        us = plan.partners(first.double().cpu())
        return self.units.to_data(tuple(u.to(self.units.scale) for u in us))

    def marginal_errors(self, us: Samples) -> Float[Tensor, " marginals"]:
        """Sliced W2 of each marginal from the judges in data units, for standardised samples."""
        errors = [
            w2_along(u[: len(judge)].flatten(1), judge.flatten(1), directions)
            for u, judge, directions in zip(us, self.judges, self.directions, strict=True)
        ]
        return torch.stack(errors) * self.units.scale

    def check_cost(self, cost: Cost) -> None:
        """Tries the cost on a few samples: one finite number a row, and a gradient."""
        points = [x[:8].clone().requires_grad_() for x in self.probe]
        values = self._try(cost, points)
        rows = len(points[0])
        if not isinstance(values, Tensor) or values.shape != (rows,):
            came = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise InvalidArgument(
                f"the cost must return one number a row, shape ({rows},) for {rows} samples, and returned {came}. "
                "Reduce over the last dimension: for instance (x - y).abs().sum(dim=1)."
            )
        if not values.requires_grad:
            raise InvalidArgument(
                "the cost has no gradient with respect to the samples. Use torch operations on its arguments, "
                "without .detach(), .item() or NumPy."
            )
        if not torch.isfinite(values).all():
            raise InvalidArgument(f"the cost is not finite on the data: it gave {values.detach().tolist()}.")

    def _try(self, cost: Cost, points: list[Tensor]) -> Any:
        """The cost's values, or an error that says on what it failed."""
        try:
            return cost(*points)
        except (RuntimeError, IndexError, TypeError) as error:
            raise InvalidArgument(
                f"the cost failed on samples of shapes {[tuple(x.shape) for x in points]}: {error}. "
                "It is called with one batch of each marginal and must take their dimensions."
            ) from error


def pose(
    sources: Sequence[Any],
    weights: Sequence[Any] | None,
    *,
    seed: int,
    engine: Engine,
    standardise: bool = True,
    as_pictures: Callable[[Sequence[Shape]], bool] = lambda shapes: False,
) -> Problem:
    """Opens the sources, sets rows aside, and measures where the data lies (or takes it as it is).

    Pictures, where these are to be taken as such, are put into ±1, which is what networks for pictures end in.
    """
    if len(sources) < 2:
        raise InvalidArgument(f"transport needs at least two data sets, and got {len(sources)}. Call fit(X, Y).")
    weights = [None] * len(sources) if weights is None else list(weights)
    if len(weights) != len(sources):
        raise InvalidArgument(
            f"there are {len(sources)} data sets and {len(weights)} weights. Pass one entry each, or None."
        )
    ranks = ranks_of(engine)
    named = [(source, w, f"data set {k + 1}") for k, (source, w) in enumerate(zip(sources, weights, strict=True))]
    with opening() as opened:
        samplers = ranks.in_turn(
            lambda: [opened(as_sampler(source, weights=w, name=name)) for source, w, name in named]
        )
        check_order([(name, source) for source, _, name in named], ranks.gather)
        samplers = apart(samplers, ranks)
        return _posed(samplers, seed=seed, engine=engine, standardise=standardise, as_pictures=as_pictures)


def _posed(
    opened: Sequence[Sampler],
    *,
    seed: int,
    engine: Engine,
    standardise: bool,
    as_pictures: Callable[[Sequence[Shape]], bool],
) -> Problem:
    ranks = ranks_of(engine)
    held_out = tuple(
        held_out_rows(sampler, seed, str(k)) if isinstance(sampler, Rows) else None for k, sampler in enumerate(opened)
    )
    samplers = tuple(map(_training_part, opened, held_out))
    probe = tuple(joint(_draw(s, _probe_size(s), Key(seed, f"probe {k}")), ranks) for k, s in enumerate(samplers))
    _check_finite(probe)
    pictures = as_pictures([sampler.shape for sampler in samplers])
    measured = Units.spanning if pictures else Units.of if standardise else Units.plain
    units = measured(probe, engine.dtype).to(engine.device)
    both = list(enumerate(zip(opened, held_out, strict=True)))
    drawn = [joint(_judges(s, rows, Key(seed, f"judges {k}")), ranks) for k, (s, rows) in both]
    judges = units.from_data(tuple(x.to(engine.device, units.data_dtype) for x in drawn))
    return Problem(
        samplers=tuple(s.to(engine.device, units.data_dtype) if isinstance(s, Rows) else s for s in samplers),
        held_out=held_out,
        units=units,
        probe=tuple(x.to(engine.device, units.data_dtype) for x in probe),
        judges=judges,
        directions=tuple(random_directions(x[0].numel(), _PROJECTIONS).to(x) for x in judges),
        pictures=pictures,
    )


def is_repeatable(sampler: Sampler) -> bool:
    """Whether it gives the same samples when it is drawn again."""
    return sampler.repeatable and not (isinstance(sampler, Rows) and sampler.random)


def _training_part(sampler: Sampler, held_out: HeldOut | None) -> Sampler:
    return sampler.excluding(held_out.rows) if isinstance(sampler, Rows) and held_out is not None else sampler


def _judges(sampler: Sampler, held_out: HeldOut | None, key: Key) -> Tensor:
    count = _JUDGED_PICTURES if are_pictures([sampler.shape]) else _JUDGES
    if isinstance(sampler, Rows) and held_out is not None:
        return sampler.judges(held_out.rows, count, generator(key))
    return _draw(sampler, count, key)


def _probe_size(sampler: Sampler) -> int:
    """More vectors in more dimensions, for the sake of covariances; fewer where a sample is large."""
    numbers = math.prod(sampler.shape)
    wanted = min(max(_PROBE, _PROBE_A_NUMBER * numbers), _LARGEST_PROBE) if len(sampler.shape) == 1 else _PROBE
    return max(1024, min(wanted, _PROBE_NUMBERS // numbers))


def _draw(sampler: Sampler, size: int, key: Key) -> Tensor:
    return sampler.draw(size, generator(key, sampler.device)).double().cpu()


def _check_finite(probe: Samples) -> None:
    for k, x in enumerate(probe):
        if not torch.isfinite(x).all():
            raise InvalidArgument(f"data set {k + 1} gave a sample that is not finite. Check how it is made.")
