"""What the data decides about a run, where the recipe does not."""

__all__ = ["Sizes", "asked_sizes"]

from numbers import Integral
from typing import Any, NamedTuple

from torchspot.errors import InvalidArgument


class Sizes(NamedTuple):
    """Of networks, batches and runs."""

    width: int
    batch_size: int
    steps: int


def asked_sizes(estimator: Any, usual: Sizes) -> Sizes:
    """The usual ones, with those instead that the estimator was given."""
    for name in ("steps", "batch_size"):
        value = getattr(estimator, name, None)
        if value is None:
            continue
        if not isinstance(value, Integral) or int(value) < 1:
            raise InvalidArgument(f"{name} must be a whole number of at least 1, and is {value!r}.")
        usual = usual._replace(**{name: int(value)})
    return usual
