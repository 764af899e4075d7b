"""Ways of feeding data: every input becomes a sampler."""

__all__ = ["PictureFolder", "as_sampler", "held_out_rows"]

from torchspot.data.arrays import held_out_rows
from torchspot.data.images import PictureFolder
from torchspot.data.sources import as_sampler
