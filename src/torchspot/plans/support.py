"""Where data lies, so that a map can say when it is asked about a point elsewhere."""

__all__ = ["Support"]

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from torchspot.types import Values

Points = Float[Tensor, "batch size"]

_ROWS, _NUMBERS, _FEWEST = 4096, 1 << 22, 256
_PAIRS = 1 << 24


@dataclass(frozen=True)
class Support:
    """Some rows of a data set, standardised, and how far others of its rows lie from them."""

    rows: Points
    reach: float
    """The largest distance of a row of the data, one of these or another, to the nearest other one of these."""

    @classmethod
    def of(cls, seen: Points, unseen: Points) -> "Support":
        """Of rows to compare with, and rows that show how far apart such rows are."""
        most = max(_FEWEST, min(_ROWS, _NUMBERS // seen.shape[1]))
        rows = torch.unique(seen[:most], dim=0)
        gaps = [cls(rows, 1.0).distance(unseen)]
        if len(rows) > 1:
            gaps.append(torch.cdist(rows, rows).fill_diagonal_(torch.inf).amin(1).to(gaps[0]))
        return cls(rows, float(torch.cat(gaps).max()) or 1.0)

    def distance(self, points: Points) -> Values:
        """To the nearest of the rows, over `reach`: above 1, farther than any row of the data was."""
        size = max(1, _PAIRS // len(self.rows))
        parts = [torch.cdist(part, self.rows).amin(1) for part in torch.split(points.to(self.rows), size)]
        return torch.cat(parts) / self.reach
