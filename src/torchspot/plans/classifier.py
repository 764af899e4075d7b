"""A fitted classifier: labels for samples of one domain, and the features by which it decides."""

__all__ = ["Classifier"]

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchspot.data.points import as_points
from torchspot.networks.generators import Units
from torchspot.networks.judges import Judges
from torchspot.types import Values

_CHUNK = 1000


@dataclass(frozen=True)
class Classifier:
    """D of samples of one marginal, in data units."""

    judges: Judges
    units: Units
    classes: np.ndarray
    marginal: int
    """Whose statistics the networks take the samples to have."""

    def predict(self, X: Any) -> np.ndarray:
        """The most likely label of each row."""
        return self.classes[self.scores(X).argmax(1).cpu().numpy()]

    def predict_proba(self, X: Any) -> Float[np.ndarray, "rows classes"]:
        """The probability of each label, in the order of `classes`."""
        return self.scores(X).double().softmax(1).cpu().numpy()

    def embed(self, X: Any) -> Float[np.ndarray, "rows dim"]:
        """D_e of each row."""
        return torch.cat(list(self._embedded(X, self.marginal))).cpu().numpy()

    def cost(self, *xs: Float[Tensor, "batch *shape"]) -> Values:
        """‖D_e(x) − D_e(y)‖² of source samples and target samples (DA-cost)."""
        x, y = (self.judges.embed(u, k) for k, u in enumerate(self.units.from_data(xs)))
        return (x - y).square().sum(1)

    def of_domain(self, marginal: int) -> "Classifier":
        """The same for samples of another marginal."""
        return Classifier(self.judges, self.units, self.classes, marginal)

    @torch.no_grad()
    def scores(self, X: Any) -> Float[Tensor, "rows classes"]:
        """Logits, where the networks are."""
        return torch.cat([self.judges.scores(h) for h in self._embedded(X, self.marginal)])

    @torch.no_grad()
    def _embedded(self, X: Any, k: int) -> Iterator[Float[Tensor, "batch dim"]]:
        device, shape = self.units.scale.device, tuple(self.units.means[k].shape)
        for part in _in_chunks(X):
            x = as_points(part, shape, "X").to(device, self.units.data_dtype)
            for some in torch.split(x, _CHUNK):
                yield self.judges.embed(self.units.from_data((some,), (k,))[0], k)


def _in_chunks(X: Any) -> Iterator[Any]:
    """Arrays some rows at a time, so that memory does not grow with their number; anything else whole."""
    if not (isinstance(X, np.ndarray | Tensor) and len(X.shape) > 1 and len(X) > _CHUNK):
        yield X
        return
    for start in range(0, len(X), _CHUNK):
        yield X[start : start + _CHUNK]
