"""Random changes of pictures that critics look through, so that few pictures are not learned by heart."""

__all__ = ["Augmentation"]

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

Pictures = Float[Tensor, "batch channels height width"]
Numbers = Float[Tensor, "batch numbers"]


@dataclass(frozen=True)
class Augmentation:
    """Real and generated pictures are mirrored, recoloured and shifted alike before critics see them.

    Differentiable, and without randomness of its own: each picture's change is a function of six numbers in [−1, 1].
    What it cannot change is what G has to get right; mirroring is only right where the data may be mirrored.

    Reference: "Differentiable Augmentation for Data-Efficient GAN Training", S. Zhao et al., 2020.
    """

    mirror: bool = True
    colour: float = 0.5
    """How much brightness, saturation and contrast change; 0: not at all."""
    shift: float = 0.125
    """By how much of its size a picture moves at most; what comes in is 0."""

    dim = 6
    """Numbers for each picture."""

    def __call__(self, u: Pictures, numbers: Numbers) -> Pictures:
        mirror, bright, saturate, contrast, down, across = (n[:, None, None, None] for n in numbers.unbind(1))
        if self.mirror:
            u = torch.where(mirror < 0, u.flip(3), u)
        if self.colour:
            u = u + self.colour * bright
            grey = u.mean(1, keepdim=True)
            u = grey + (u - grey) * (1 + 2 * self.colour * saturate).clamp(min=0)
            level = u.mean((1, 2, 3), keepdim=True)
            u = level + (u - level) * (1 + self.colour * contrast)
        return _shifted(_shifted(u, down, 2, self.shift), across, 3, self.shift) if self.shift else u


def _shifted(u: Pictures, numbers: Float[Tensor, "batch 1 1 1"], dim: int, share: float) -> Pictures:
    """Each picture moved along one axis by a whole number of pixels."""
    size = u.shape[dim]
    most = max(1, round(share * size))
    along = [-1 if k == dim else 1 for k in range(4)]
    places = (
        torch.arange(size, device=u.device).view(along)
        + most
        + (numbers * (most + 0.5)).round().long().clamp(-most, most)
    )
    edges = (0, 0, most, most) if dim == 2 else (most, most)
    return functional.pad(u, edges).gather(dim, places.expand_as(u))
