"""What a library is given in the comparison, what it gives back, and what several of them need for that."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from peer_problems import Laws

JUDGED_AT_ONCE = 1 << 27


class Cannot(Exception):
    """Why a library has no answer here."""


@dataclass(frozen=True)
class Job:
    """A problem as a library is given it."""

    laws: Laws
    cost: str
    x: Tensor
    y: Tensor
    seconds: float
    """Within which it has to be done."""
    room: float
    """Bytes of memory that it may take."""

    @property
    def device(self) -> torch.device:
        return self.x.device

    @property
    def n(self) -> int:
        return len(self.x)

    @property
    def dim(self) -> int:
        return self.x.shape[1]

    def matrix(self) -> Tensor:
        """c(x_i, y_j) for all i and j, of the function of rows that a learned cost is."""
        at_once = max(1, (1 << 24) // (self.n * self.dim))
        return torch.cat([self._against_all(part) for part in self.x.split(at_once)])

    def _against_all(self, part: Tensor) -> Tensor:
        size, n = len(part), self.n
        return self.laws.cost(part.repeat_interleave(n, 0), self.y.repeat(size, 1)).view(size, n)

    def needs_matrix(self, bytes_an_entry: int) -> None:
        """Raises if a matrix of all pairs does not fit."""
        needed = float(self.n) ** 2 * bytes_an_entry
        if needed > self.room:
            raise Cannot(f"memory: all pairs take {needed / 1e9:,.0f} GB")

    def takes(self, *known: str) -> None:
        """Raises if the cost is none of these."""
        if self.cost not in known:
            raise Cannot(f"cost not supported: {self.cost}")


@dataclass(frozen=True)
class Answer:
    """The distance, and the partners of points that were not given."""

    value: float
    partner: Callable[[Tensor], Tensor] | None
    more: dict[str, float] = field(default_factory=dict)


Solve = Callable[[], Answer]
Method = Callable[[Job], Solve]


def fitting(seconds: float, fixed: float, pace: float, usual: int) -> int:
    """Steps that take nine tenths of the time, at most the usual number."""
    return min(usual, max(8, int((0.9 * seconds - fixed) / pace)))


def all_pairs(cost: str, x: Tensor, y: Tensor) -> Tensor:
    apart = torch.cdist(x, y)
    return apart if cost == "euclidean" else apart.square_()


def entropic(job: Job, g: Tensor, epsilon: float) -> Callable[[Tensor], Tensor]:
    """By the entropic plan's law of y given x: its mean; for the Euclidean cost, whose plans are no maps, a draw."""

    def partner(points: Tensor) -> Tensor:
        here = job.laws.embed(job.y)
        made = []
        for part in points.split(max(1, JUDGED_AT_ONCE // job.n)):
            cost = all_pairs(job.cost, job.laws.embed(part), here)
            logits = (g.to(cost) - cost) / epsilon
            if job.cost == "euclidean":
                noise = -torch.empty_like(logits).exponential_().log()
                made.append(job.y[(logits + noise).argmax(1)])
            else:
                made.append(logits.softmax(1) @ job.y)
        return torch.cat(made)

    return partner
