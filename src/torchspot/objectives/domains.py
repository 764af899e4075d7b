"""Two domains ready to be drawn from: a source with labels, and a target without."""

__all__ = ["Domains", "open_domains"]

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchspot.data.arrays import Rows
from torchspot.data.labelled import BalancedRows, LabelledRows, Labels, as_labels
from torchspot.data.sources import as_sampler, check_order
from torchspot.errors import InvalidArgument
from torchspot.networks.convolutional import are_pictures
from torchspot.networks.generators import Units
from torchspot.random import Key, generator
from torchspot.training.ranks import ranks_of
from torchspot.training.streams import apart, joint, let_go, opening
from torchspot.types import Engine, Sampler, Samples, Shape

_PROBE, _PROBE_NUMBERS = 16_384, 1 << 23


@dataclass(frozen=True)
class Domains:
    """Source and target of an adaptation, in the units that networks see."""

    source: LabelledRows
    target: Sampler
    labels: Labels
    source_shares: Float[np.ndarray, " classes"]
    units: Units
    probe: Samples
    """Some samples of each, to size things by."""
    pictures: bool
    fingerprints: tuple[str, str]

    @property
    def shape(self) -> Shape:
        """Of one sample of either."""
        return self.target.shape

    def close(self) -> None:
        """Lets go of what samples are read by; the next draw begins again."""
        let_go(self.source, self.target)

    def balanced(self) -> BalancedRows:
        """The source, drawn class by class."""
        return BalancedRows(self.source, len(self.labels.classes))

    def shares(self, *, balanced: bool) -> Float[Tensor, " classes"]:
        """Of each class in draws from the source, as it is or class by class."""
        seen = self.source_shares > 0
        shares = torch.from_numpy(seen / seen.sum() if balanced else self.source_shares)
        return shares.to(self.units.scale.device, self.units.dtype)


def open_domains(Xs: Any, ys: Any, Xt: Any, *, engine: Engine, seed: int) -> Domains:
    """Opens both, checks that they fit together, and measures where they lie: pictures are put into ±1."""
    ranks = ranks_of(engine)
    with opening() as opened:
        named = (("Xs", Xs), ("Xt", Xt))
        both = ranks.in_turn(lambda: [opened(as_sampler(data, name=name)) for name, data in named])
        check_order(named, ranks.gather)
        source, target = apart(both, ranks)
        return _domains(source, target, ys, engine=engine, seed=seed)


def _domains(source: Sampler, target: Sampler, ys: Any, *, engine: Engine, seed: int) -> Domains:
    if not isinstance(source, Rows):
        raise InvalidArgument(
            "Xs must have rows that go with the labels: an array, a table, a file or a Dataset, not a stream."
        )
    labels = as_labels(ys, len(source))
    if source.shape != target.shape:
        raise InvalidArgument(
            f"source samples have shape {source.shape} and target samples {target.shape}. Both must have the same "
            "columns (or channels, height and width): bring them to one shape first."
        )
    both = (("Xs", source), ("Xt", target))
    drawn = [_probe(sampler, Key(seed, f"probe {k}"), name) for k, (name, sampler) in enumerate(both)]
    probe = tuple(joint(x, ranks_of(engine)) for x in drawn)
    pictures = are_pictures([source.shape])
    if not pictures and len(source.shape) != 1:
        raise InvalidArgument(
            f"samples have shape {source.shape}, which is neither a row of numbers nor a picture (channels, height, "
            "width) of at least 8 pixels each way. Grey pictures need their channel, X[:, None]; others can be made "
            "rows, X.reshape(len(X), -1), or larger."
        )
    units = (Units.spanning if pictures else Units.by_column)(probe, engine.dtype).to(engine.device)
    kept = target.to(engine.device, units.data_dtype) if isinstance(target, Rows) else target
    return Domains(
        LabelledRows(source, labels.codes).to(engine.device, units.data_dtype),
        kept,
        labels,
        labels.shares(source),
        units,
        tuple(x.to(engine.device, units.data_dtype) for x in probe),
        pictures,
        (source.fingerprint(), target.fingerprint() if isinstance(target, Rows) else "stream"),
    )


def _probe(sampler: Sampler, key: Key, name: str) -> Tensor:
    size = max(256, min(_PROBE, _PROBE_NUMBERS // torch.Size(sampler.shape).numel()))
    drawn = sampler.draw(size, generator(key, sampler.device)).double().cpu()
    if not torch.isfinite(drawn).all():
        raise InvalidArgument(f"{name} gave a sample that is not finite. Check how it is made.")
    return drawn
