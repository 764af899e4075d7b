"""The four adaptation tasks of section 5.4: digits of one data set with labels, and of another without.

What differs between two data sets and can be seen without labels is matched first, the same for every method: USPS
digits fill their 16 × 16 pixels, so they are brought to 20 × 20 and put into the middle of 28 × 28, as MNIST's are;
SVHN becomes grey, as MNIST is, and MNIST gets a margin of 2 pixels; MNIST becomes three equal channels beside MNIST-M.
"""

__all__ = ["TASKS", "AdaptationTask", "made_task", "real_task"]

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from torchspot.data.arrays import Rows
from torchspot_paper.datasets import Digits, Pictures, as_source, digits, mnistm, resized

_BOX, _SIZE, _LARGE = 20, 28, 32
_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)


@dataclass(frozen=True)
class AdaptationTask:
    """Labelled pictures of the source, and of the target pictures for training and others for judging."""

    name: str
    source: Digits
    target: Digits

    def sources(self) -> tuple[Rows, np.ndarray, Rows]:
        """What `fit` takes: source pictures, their labels, and target pictures."""
        return as_source(self.source.train), self.source.train_labels, as_source(self.target.train)


def real_task(name: str, folder: Path) -> AdaptationTask:
    """One of `TASKS`, from the data folder."""
    source, target = TASKS[name](folder)
    return AdaptationTask(name, source, target)


def made_task(name: str, rows: int = 64) -> AdaptationTask:
    """Pictures of noise with made-up labels, in the shapes of the task: to see that everything runs."""
    rng = np.random.default_rng(0)
    shape = {"svhn->mnist": (1, _LARGE, _LARGE), "mnist->mnistm": (3, _SIZE, _SIZE)}.get(name, (1, _SIZE, _SIZE))

    def made() -> Digits:
        labels = (np.arange(rows) % 10).astype(np.uint8)
        images = rng.integers(0, 128, size=(rows, *shape), dtype=np.uint8) + labels[:, None, None, None] * 12
        return Digits(images, labels, images, labels)

    return AdaptationTask(name, made(), made())


def _usps(folder: Path) -> Digits:
    return _each(digits("usps", folder), lambda x: _framed(resized(x, _BOX), _SIZE))


def _each(data: Digits, change: Callable[[Pictures], Pictures]) -> Digits:
    return replace(data, train=change(data.train), test=change(data.test))


def _framed(pictures: Pictures, size: int) -> Pictures:
    """In the middle of larger pictures that are 0 at the edges."""
    margin = (size - pictures.shape[2]) // 2
    return np.pad(pictures, ((0, 0), (0, 0), (margin, margin), (margin, margin)))


def _grey(pictures: Pictures) -> Pictures:
    parts = np.array_split(pictures, max(1, len(pictures) // 4096))
    return np.concatenate([np.tensordot(part, _GREY, axes=(1, 0)).round().astype(np.uint8) for part in parts])[:, None]


TASKS: dict[str, Callable[[Path], tuple[Digits, Digits]]] = {
    "mnist->usps": lambda folder: (digits("mnist", folder), _usps(folder)),
    "usps->mnist": lambda folder: (_usps(folder), digits("mnist", folder)),
    "svhn->mnist": lambda folder: (
        _each(_whole(digits("svhn", folder)), _grey),
        _each(digits("mnist", folder), lambda x: _framed(x, _LARGE)),
    ),
    "mnist->mnistm": lambda folder: (
        _each(digits("mnist", folder), lambda x: np.repeat(x, 3, axis=1)),
        mnistm(folder),
    ),
}


def _whole(data: Digits) -> Digits:
    """All pictures for training, as the source of an adaptation is not judged."""
    return replace(
        data,
        train=np.concatenate((data.train, data.test)),
        train_labels=np.concatenate((data.train_labels, data.test_labels)),
    )
