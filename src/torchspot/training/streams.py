"""Samplers as a run has them: streams that several processes read are dealt out, and readers are let go of."""

__all__ = ["apart", "joint", "let_go", "opening"]

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from torchspot.errors import InvalidArgument
from torchspot.random import Key, generator
from torchspot.training.ranks import Alone, Ranks
from torchspot.types import ReadsAhead, Sampler

_COMPARED = 16

S = TypeVar("S")


def apart(samplers: Sequence[Sampler], ranks: Alone | Ranks) -> list[Sampler]:
    """The samplers; of each that gives some processes the same samples, this process's part of them.

    What depends on the generator alone already differs from process to process, and so does a stream that its owner
    has divided among them.
    """
    kinds = ranks.gather([sampler.repeatable for sampler in samplers])
    for rank, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise InvalidArgument(
                f"process {rank} of 0 to {ranks.count - 1} was given a stream where the first has rows, or the other "
                "way round. Give all processes the same kind of data."
            )
    return [sampler if sampler.repeatable else _part_of(sampler, ranks) for sampler in samplers]


def _part_of(sampler: Sampler, ranks: Alone | Ranks) -> Sampler:
    if ranks.count == 1:
        return sampler
    few = sampler.draw(_COMPARED, generator(Key(0, "apart"), sampler.device)).double().cpu()
    seen = ranks.gather(_digest(few))
    return sampler if len(set(seen)) == ranks.count else _Dealt(sampler, ranks.rank, ranks.count)


def joint(drawn: Tensor, ranks: Alone | Ranks) -> Tensor:
    """What was drawn, where all processes drew the same; else as much, an equal part of what each of them drew."""
    if len(set(ranks.gather(_digest(drawn)))) == 1:
        return drawn
    return torch.cat(ranks.gather(drawn[: -(-len(drawn) // ranks.count)].clone()))


def _digest(samples: Tensor) -> str:
    return hashlib.blake2b(samples.contiguous().numpy().tobytes()).hexdigest()


def let_go(*samplers: Any) -> None:
    """Ends what these read by; the next draw begins again."""
    for sampler in samplers:
        if isinstance(sampler, ReadsAhead):
            sampler.close()


@contextmanager
def opening() -> Iterator[Callable[[S], S]]:
    """Notes what is opened within, and lets go of it where something fails."""
    with ExitStack() as stack:

        def opened(sampler: S) -> S:
            stack.callback(let_go, sampler)
            return sampler

        yield opened
        stack.pop_all()


class _Dealt:
    """Every k-th sample of a stream."""

    repeatable = False

    def __init__(self, sampler: Sampler, part: int, parts: int) -> None:
        self.sampler, self.part, self.parts = sampler, part, parts
        self.shape, self.device = sampler.shape, sampler.device

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch *shape"]:
        """Of so many samples for each process, those for this one."""
        return self.sampler.draw(size * self.parts, generator)[self.part :: self.parts]
