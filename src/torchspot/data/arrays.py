"""Samplers over the rows of a table that is in memory or mapped from disk."""

__all__ = ["HeldOut", "Rows", "held_out_rows"]

import functools
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from torchspot.data.loaders import Items
from torchspot.errors import CorruptFile, InvalidArgument
from torchspot.random import Key
from torchspot.types import Shape

Indices = Int[np.ndarray, " rows"]

_CHUNK = 1 << 20
_HELD_OUT_SHARE, _HELD_OUT_MOST, _HELD_OUT_FROM = 0.1, 20_000, 100


@dataclass(frozen=True)
class HeldOut:
    """Rows that training never saw, and the source they belong to."""

    fingerprint: str
    rows: Indices


class Rows:
    """Uniform or weighted draws, with replacement, from the rows of an array.

    The array is never copied: a NumPy array is read where it is, a memory map page by page. What a draw costs does
    not depend on the number of rows. A tensor on another device is drawn from on that device. A file that is changed
    while it is mapped is an error.
    """

    def __init__(
        self,
        values: np.ndarray | Tensor | Items,
        *,
        name: str = "the data",
        weights: np.ndarray | None = None,
        scale: float = 1.0,
        excluded: Indices | None = None,
    ) -> None:
        self.values, self.name, self.scale = values, name, scale
        self.shape: Shape = tuple(values.shape[1:])
        self.device = values.device if isinstance(values, Tensor) else torch.device("cpu")
        self._readers = values.readers if isinstance(values, Items) else None
        self.slow = isinstance(values, np.memmap) or self._readers is not None
        self._file = _MappedFile.of(values)
        self._weights = weights
        self._excluded = np.empty(0, dtype=np.int64) if excluded is None else np.sort(excluded)
        self._cumulative = _cumulative(weights, self._excluded)
        self._gaps = torch.from_numpy(self._excluded - np.arange(len(self._excluded))).to(self.device)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def repeatable(self) -> bool:
        return True

    @property
    def random(self) -> bool:
        """Whether a row is another one when it is taken again, as in a dataset that changes its samples at random."""
        return isinstance(self.values, Items) and self.values.random

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch *shape"]:
        """Rows by index drawn from the generator, with the excluded ones left out."""
        return self.take(self.draw_indices(size, generator))

    def later(self, size: int, generator: torch.Generator) -> Callable[[], Float[Tensor, "batch *shape"]]:
        """Draws which rows are taken, and gives what reads them: another thread may do that."""
        self.begin()
        return functools.partial(self.take, self.draw_indices(size, generator))

    def begin(self) -> None:
        """Starts worker processes that read rows, where there are to be any."""
        if self._readers is not None:
            self._readers.begin()

    def close(self) -> None:
        """Ends worker processes that read rows; the next draw starts them again."""
        if self._readers is not None:
            self._readers.close()

    def take(self, indices: Int[Tensor, " batch"] | Indices) -> Float[Tensor, "batch *shape"]:
        """The rows with these numbers."""
        if self._file is not None:
            self._file.check(self.name)
        if isinstance(self.values, Tensor):
            rows = self.values[torch.as_tensor(indices, device=self.device)]
        else:
            rows = torch.from_numpy(_native(self.values[np.asarray(indices)]))
        return rows if self.scale == 1 else rows * self.scale

    def excluding(self, rows: Indices) -> "Rows":
        """The same source without these rows."""
        return Rows(self.values, name=self.name, weights=self._weights, scale=self.scale, excluded=rows)

    def judges(self, rows: Indices, most: int, generator: torch.Generator) -> Float[Tensor, "batch *shape"]:
        """At most so many samples of these rows, by weight where there are weights; of all rows if none are given.

        Fewer than 100 rows are drawn from with replacement: they are the law itself rather than a sample of one.
        """
        if not len(rows) and self._weights is None and len(self) < _HELD_OUT_FROM:
            return self.take(torch.randint(len(self), (most,), generator=generator)).double().cpu()
        return self.chosen(rows, most, generator)

    def chosen(self, rows: Indices, most: int, generator: torch.Generator) -> Float[Tensor, "batch *shape"]:
        """At most so many of these rows, each once, in random order; of all rows if none are given.

        Weighted rows are drawn by their weights instead, with replacement.
        """
        count = len(rows) or len(self)
        if self._weights is not None:
            cumulative = np.cumsum(self._weights[rows] if len(rows) else self._weights)
            drawn = _search(cumulative, torch.rand(most, dtype=torch.float64, generator=generator)).numpy()
        else:
            drawn = _distinct(count, most, generator)
        return self.take(rows[drawn] if len(rows) else drawn).double().cpu()

    def to(self, device: torch.device, dtype: torch.dtype) -> "Rows":
        """A copy of the rows that are not excluded on another device, drawn in the same order.

        Rows mapped from disk, and weighted ones, stay where they are.
        """
        if device.type == "cpu" or isinstance(self.values, np.memmap | Items) or self._weights is not None:
            return self
        values = self.values if isinstance(self.values, Tensor) else torch.from_numpy(_native(self.values).copy())
        kept = np.delete(np.arange(len(self)), self._excluded) if len(self._excluded) else slice(None)
        values = values[kept].to(device)
        values = values.to(dtype) if values.is_floating_point() else values
        return Rows(values, name=self.name, scale=self.scale)

    def shares(self) -> Float[np.ndarray, " rows"]:
        """Of each row in the law, summing to 1."""
        weights = np.ones(len(self)) if self._weights is None else self._weights
        return weights / weights.sum()

    def counting_rows(self) -> Indices | None:
        """The rows with a weight above 0; None where all count alike."""
        return None if self._weights is None else np.flatnonzero(self._weights)

    def fingerprint(self) -> str:
        """A digest of the number of rows, their shape, and some rows (and weights) spread over the whole."""
        spread = np.linspace(0, len(self) - 1, num=min(len(self), 1024)).astype(np.int64)
        digest = hashlib.blake2b(repr((len(self), self.shape)).encode(), digest_size=16)
        if not isinstance(self.values, Items):
            digest.update(self.take(spread).double().cpu().numpy().tobytes())
        if self._weights is not None:
            digest.update(self._weights[spread].tobytes())
        return digest.hexdigest()

    def check_finite(self) -> None:
        """Reads everything once, in chunks, and names the first number that is NaN or infinite."""
        size = max(1, _CHUNK // math.prod(self.shape))
        for start in range(0, len(self), size):
            chunk = self.take(np.arange(start, min(start + size, len(self))))
            if chunk.is_floating_point() and not torch.isfinite(chunk).all():
                row, *place = torch.nonzero(~torch.isfinite(chunk))[0].tolist()
                raise InvalidArgument(
                    f"{self.name} has a value that is not finite ({float(chunk[(row, *place)])}) at row {start + row}, "
                    f"column {place[0] if len(place) == 1 else tuple(place)}. Drop or fill such rows first."
                )

    def draw_indices(self, size: int, generator: torch.Generator) -> Int[Tensor, " batch"]:
        """Numbers of rows, as `draw` takes them."""
        if self._cumulative is not None:
            uniform = torch.rand(size, dtype=torch.float64, generator=generator, device=generator.device)
            return _search(self._cumulative, uniform.cpu())
        kept = len(self) - len(self._excluded)
        k = torch.randint(kept, (size,), generator=generator, device=self.device)
        if not len(self._excluded):
            return k
        return k + torch.searchsorted(self._gaps, k, right=True)


@dataclass(frozen=True)
class _MappedFile:
    """A file that an array is mapped from, and how it was when that began.

    To read a mapped file that was cut short would end the process without a word. A file that was deleted or replaced
    by another of its name is still there for the map, and does no harm.
    """

    path: Path
    inode: int
    size: int
    written: int | None
    """When it was last written to; None where the map itself may write."""

    @classmethod
    def of(cls, values: np.ndarray | Tensor | Items) -> "_MappedFile | None":
        """None for what is not mapped."""
        if not isinstance(values, np.memmap) or values.filename is None or not Path(values.filename).exists():
            return None
        path = Path(values.filename)
        stat = path.stat()
        return cls(path, stat.st_ino, stat.st_size, stat.st_mtime_ns if values.mode in ("r", "c") else None)

    def check(self, name: str) -> None:
        """Raises if the file has changed."""
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return
        changed = now.st_size != self.size or self.written not in (None, now.st_mtime_ns)
        if now.st_ino == self.inode and changed:
            raise CorruptFile(
                f"{name}: the file {self.path} was changed while it was read. Start again with a file that stays as "
                "it is; a checkpoint of a run that was under way is intact, but belongs to the file as it was."
            )


def held_out_rows(rows: Rows, seed: int, role: str) -> HeldOut:
    """A seeded choice of 10 % of the rows, at most 20 000; none of fewer than 100 rows."""
    counting = rows.counting_rows()
    n = len(rows) if counting is None else len(counting)
    count = min(int(n * _HELD_OUT_SHARE), _HELD_OUT_MOST) if n >= _HELD_OUT_FROM else 0
    rng = np.random.default_rng(Key(seed, f"held out {role}").at(0))
    chosen = rng.choice(n, size=count, replace=False, shuffle=False)
    return HeldOut(rows.fingerprint(), np.sort(chosen if counting is None else counting[chosen]))


def _search(cumulative: Float[np.ndarray, " rows"], uniform: Float[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """The row in whose share of the total weight each number of [0, 1) falls."""
    found = np.searchsorted(cumulative, uniform.numpy() * cumulative[-1], side="right")
    last = int(np.searchsorted(cumulative, cumulative[-1], side="left"))
    return torch.from_numpy(np.minimum(found, last))


def _distinct(count: int, most: int, generator: torch.Generator) -> Indices:
    """Different numbers below `count` in random order, at most so many; memory does not grow with `count`."""
    if count <= 4 * most:
        return torch.randperm(count, generator=generator)[:most].numpy()
    drawn = torch.unique(torch.randint(count, (2 * most,), generator=generator))
    return drawn[torch.randperm(len(drawn), generator=generator)[:most]].numpy()


def _native(rows: np.ndarray) -> np.ndarray:
    """Contiguous rows of a type that torch takes as it is; others (longer floats, foreign byte order) as float64."""
    common = rows.dtype.isnative and rows.dtype.itemsize <= 8
    return np.ascontiguousarray(rows if common else rows.astype(np.float64))


def _cumulative(weights: np.ndarray | None, excluded: Indices) -> Float[np.ndarray, " rows"] | None:
    """Running sums in float64, excluded rows counting nothing."""
    if weights is None:
        return None
    kept = weights.astype(np.float64)
    kept[excluded] = 0
    return np.cumsum(kept)
