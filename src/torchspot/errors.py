"""The few errors that torchspot raises."""

__all__ = ["CorruptFile", "Diverged", "InvalidArgument", "NotFitted", "TorchspotError"]

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
