"""A fitted classifier: labels for samples of one domain, and the features by which it decides."""

__all__ = ["Classifier", "Labeller", "classifier_file", "load_classifier"]

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor

from torchspot import storage
from torchspot.data.arrays import Rows
from torchspot.data.loaders import Items
from torchspot.data.points import as_points
from torchspot.data.sources import check_real, rows_in
from torchspot.errors import CorruptFile, InvalidArgument, NotFitted
from torchspot.networks.generators import Units
from torchspot.networks.judges import JudgeBuilder, Judges, JudgeShapes, mlp_judges, picture_judges
from torchspot.types import Shape, Values

_CHUNK, _LARGEST, _SAID = 1000, 1 << 16, 500
_KIND, _VERSION = "classifier", 1
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Labeller(ClassifierMixin, BaseEstimator):
    """What estimators share that have a `classifier_` after `fit`."""

    how: ClassVar[str] = "fit(Xs, ys, Xt)"
    """How it is fitted, for those who forgot."""

    def predict(self, X: Any) -> np.ndarray:
        """The label of each sample."""
        return self._fitted().predict(X)

    def predict_proba(self, X: Any) -> Float[np.ndarray, "rows classes"]:
        """The probability of each label, in the order of `classes_`."""
        return self._fitted().predict_proba(X)

    def _fitted(self) -> "Classifier":
        if not hasattr(self, "classifier_"):
            raise NotFitted(f"this {type(self).__name__} has learned nothing yet. Call {self.how} first.")
        return self.classifier_


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

    def save(self, path: str | Path) -> Path:
        """Writes one file, atomically; a folder gets a classifier.safetensors. `load_classifier` reads it."""
        builder = self.judges.builder
        state = {
            "judges": None if builder is None else {"name": type(builder).__name__, **asdict(builder)},
            "marginals": len(self.judges.heads),
            "marginal": self.marginal,
            "classes": json.dumps(self.classes.tolist()),
            "kind": self.classes.dtype.str,
            "dtype": str(self.units.dtype).removeprefix("torch."),
            "means": list(self.units.means),
            "scale": self.units.scale,
            "weights": dict(self.judges.state_dict()),
        }
        file = classifier_file(Path(path))
        storage.write(file, _KIND, _VERSION, state)
        return file

    @torch.no_grad()
    def scores(self, X: Any) -> Float[Tensor, "rows classes"]:
        """Logits, where the networks are."""
        return torch.cat([self.judges.scores(h) for h in self._embedded(X, self.marginal)])

    @torch.no_grad()
    def _embedded(self, X: Any, k: int) -> Iterator[Float[Tensor, "batch dim"]]:
        for x in _in_chunks(X, tuple(self.units.means[k].shape)):
            known = x.to(self.units.scale.device, self.units.data_dtype)
            yield self.judges.embed(self.units.from_data((known,), (k,))[0], k)


def classifier_file(path: Path) -> Path:
    """The file itself, or where it is in a folder."""
    return path if path.suffix == ".safetensors" else path / "classifier.safetensors"


def load_classifier(path: str | Path, *, judges: JudgeBuilder | None = None) -> Classifier:
    """Reads what `Classifier.save` wrote; for judges of your own give their builder. No code is read from the file."""
    file = classifier_file(Path(path))
    state = storage.read(file, _KIND, _VERSION)
    if judges is None and state.get("judges") is None:
        raise InvalidArgument(
            f"{file} was fitted with judges of your own, and files hold no code. "
            f"Load it with load_classifier({str(file)!r}, judges=…)."
        )
    try:
        units = Units(tuple(state["means"]), state["scale"], dtype=_DTYPES[state["dtype"]])
        classes = np.array(json.loads(state["classes"]), dtype=np.dtype(state["kind"]))
        shape, marginals = tuple(units.means[0].shape), int(state["marginals"])
        shapes = JudgeShapes((shape,) * marginals, len(classes))
        network = (judges or _builder(state["judges"]))(shapes, torch.Generator())
        network.load_state_dict(state["weights"])
        return Classifier(network.to(units.dtype).eval().requires_grad_(False), units, classes, int(state["marginal"]))
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise CorruptFile(
            f"{file} is damaged, or does not fit the judges that were given ({str(error)[:500]})."
        ) from error


def _builder(spec: dict[str, Any]) -> JudgeBuilder:
    """A library builder from its name and numbers."""
    kinds: dict[str, Any] = {"mlp_judges": mlp_judges, "picture_judges": picture_judges}
    sizes = {name: value for name, value in spec.items() if name != "name"}
    if not all(isinstance(value, int) and 1 <= value <= _LARGEST for value in sizes.values()):
        raise ValueError(f"judges of sizes {sizes}")
    return kinds[spec["name"]](**sizes)


def _in_chunks(X: Any, shape: Shape) -> Iterator[Tensor]:
    """Samples of anything that has rows, some at a time, so that memory does not grow with their number."""
    found = (X.values, X.scale) if isinstance(X, Rows) else None if isinstance(X, list | tuple) else rows_in(X, "X")
    if found is None:
        yield from torch.split(as_points(X, shape, "X"), _CHUNK)
        return
    values, scale = found
    check_real(values, "X")
    if not isinstance(values, Items) and values.ndim == 1 and shape == (1,):
        values = values[:, None]
    rows = Rows(values, name="X", scale=scale)
    if rows.shape != shape:
        raise InvalidArgument(f"X must have samples of shape {shape}, and has {rows.shape}. One sample is [x].")
    for start in range(0, len(rows), _CHUNK):
        part = rows.take(np.arange(start, min(start + _CHUNK, len(rows))))
        bad = (~torch.isfinite(part.flatten(1)).all(1)).nonzero()
        if len(bad):
            raise InvalidArgument(f"row {start + int(bad[0])} of X has a number that is not finite.")
        yield part
