"""The four adaptation tasks of section 5.4: digits of one data set with labels, and of another without.

What differs between two data sets and can be seen without labels is matched first, the same for every method: USPS
digits fill their 16 × 16 pixels, so they are brought to 20 × 20 and put into the middle of 28 × 28, as MNIST's are;
SVHN becomes grey, as MNIST is, and MNIST's digits as large as SVHN's, and pictures of both get full contrast and are
turned into their negatives where the middle is darker than the whole; MNIST gets three equal channels beside MNIST-M.
"""

__all__ = ["OTHER_SPLITS", "PAPER_TASKS", "AdaptationTask", "made_task", "real_task"]

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from torchspot.data.arrays import Rows
from torchspot_paper.datasets import Digits, Pictures, as_source, digits, mnistm, resized

_BOX, _MIDDLE, _SIZE, _LARGE = 20, 24, 28, 32
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
    """One of the tasks, from the data folder."""
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


def _enlarged(pictures: Pictures, size: int) -> Pictures:
    """The middle 24 × 24 pixels, made larger."""
    cut = (pictures.shape[2] - _MIDDLE) // 2
    return resized(pictures[:, :, cut : cut + _MIDDLE, cut : cut + _MIDDLE], size)


def _in_parts(change: Callable[[Float[np.ndarray, "rows c h w"]], np.ndarray]) -> Callable[[Pictures], Pictures]:
    """A change of pictures in [0, 255], some at a time."""

    def changed(pictures: Pictures) -> Pictures:
        parts = np.array_split(pictures, max(1, len(pictures) // 4096))
        return np.concatenate([change(part.astype(np.float32)).round().astype(np.uint8) for part in parts])

    return changed


@_in_parts
def _grey(pictures: Float[np.ndarray, "rows 3 h w"]) -> Float[np.ndarray, "rows 1 h w"]:
    return np.tensordot(pictures, _GREY, axes=(1, 0))[:, None]


@_in_parts
def _bright_on_dark(pictures: Float[np.ndarray, "rows c h w"]) -> Float[np.ndarray, "rows c h w"]:
    """Each picture from its 2 % to its 98 % quantile, and as its negative where the middle is darker than the whole.

    The middle is a Gaussian window whose deviation is a fifth of the size.
    """
    low, high = np.quantile(pictures, (0.02, 0.98), axis=(1, 2, 3), keepdims=True)
    full = ((pictures - low) / np.maximum(high - low, 0.05 * 255)).clip(0, 1)
    size = pictures.shape[2]
    window = np.exp(-0.5 * ((np.arange(size) - (size - 1) / 2) / (size / 5)) ** 2)
    weights = np.outer(window, window) / window.sum() ** 2
    darker = (full * (weights - 1 / size**2)).sum((1, 2, 3), keepdims=True) < 0
    return 255 * np.where(darker, 1 - full, full)


TASKS: dict[str, Callable[[Path], tuple[Digits, Digits]]] = {
    "mnist->usps": lambda folder: (digits("mnist", folder), _usps(folder)),
    "usps->mnist": lambda folder: (_usps(folder), digits("mnist", folder)),
    "svhn->mnist": lambda folder: (
        _each(_whole(digits("svhn", folder)), lambda x: _bright_on_dark(_grey(x))),
        _each(digits("mnist", folder), lambda x: _bright_on_dark(_enlarged(x, _LARGE))),
    ),
    "mnist->mnistm": lambda folder: (
        _each(digits("mnist", folder), lambda x: np.repeat(x, 3, axis=1)),
        mnistm(folder),
    ),
    "mnist->usps 80/20": lambda folder: (digits("mnist", folder), _split_anew(_usps(folder))),
    "usps->mnist 80/20": lambda folder: (_split_anew(_usps(folder)), digits("mnist", folder)),
    "mnist->usps resized": lambda folder: (
        digits("mnist", folder),
        _each(digits("usps", folder), lambda x: resized(x, _SIZE)),
    ),
}
"""The last one takes USPS as the paper does: larger, but not in MNIST's box."""
PAPER_TASKS, OTHER_SPLITS = tuple(TASKS)[:4], tuple(TASKS)[4:6]
"""Those of table 1 on official splits, and those on the paper's own split of USPS."""


def _split_anew(data: Digits) -> Digits:
    """All pictures shuffled, 80 % for training: easier than the official split, where test pictures are apart."""
    images, labels = np.concatenate((data.train, data.test)), np.concatenate((data.train_labels, data.test_labels))
    order = np.random.default_rng(0).permutation(len(images))
    images, labels, first = images[order], labels[order], int(0.8 * len(images))
    return Digits(images[:first], labels[:first], images[first:], labels[first:])


def _whole(data: Digits) -> Digits:
    """All pictures for training, as the source of an adaptation is not judged."""
    return replace(
        data,
        train=np.concatenate((data.train, data.test)),
        train_labels=np.concatenate((data.train_labels, data.test_labels)),
    )
