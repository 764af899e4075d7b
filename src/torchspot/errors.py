"""The few errors that torchspot raises."""

__all__ = ["CorruptFile", "Diverged", "InvalidArgument", "NotFitted", "TorchspotError", "naming_dead_workers"]

from collections.abc import Iterator
from contextlib import contextmanager

from sklearn.exceptions import NotFittedError


class TorchspotError(Exception):
    """Anything that torchspot itself finds wrong."""


class InvalidArgument(TorchspotError, ValueError):
    """An argument or a data set that cannot be used; the message says which and what to do."""


class NotFitted(TorchspotError, NotFittedError):
    """A result was asked of an estimator before `fit`."""


class Diverged(TorchspotError, RuntimeError):
    """Training met a number that is not finite, or a flow could not be followed.

    Attributes:
        step: the first step at which it happened; None where that is not known.
    """

    def __init__(self, message: str, step: int | None) -> None:
        super().__init__(message)
        self.step = step


class CorruptFile(TorchspotError):
    """A file is damaged, cut short, or not what it says it is."""


@contextmanager
def naming_dead_workers(data: str = "a stream") -> Iterator[None]:
    """Says what it means that a worker of a DataLoader is dead: PyTorch raises that wherever the main thread is."""
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker (pid" not in str(error):
            raise
        raise TorchspotError(
            f"a worker process that reads {data} has died: it was killed, often for want of memory, or a library in it "
            "crashed. Give the DataLoader fewer workers, or 0 to see what its dataset does. A fit that was "
            f"given resume= goes on from its last checkpoint when it is called again. ({error})"
        ) from None
