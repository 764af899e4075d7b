"""Random changes of samples that critics and classifiers look through, so that few samples are not learned by heart."""

__all__ = ["Augmentation", "Change", "Distortion", "Noise", "Unchanged"]

from dataclasses import dataclass, replace
from typing import Protocol

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


class Change(Protocol):
    """A change of samples that keeps their class; of each sample a function of numbers in [−1, 1]."""

    @property
    def dim(self) -> int:
        """Numbers for each sample."""

    def __call__(self, u: Tensor, numbers: Numbers) -> Tensor: ...

    def slight(self, u: Tensor, numbers: Numbers) -> Tensor:
        """The same kind of change, but less of it."""


@dataclass(frozen=True)
class Unchanged:
    """Samples as they are."""

    dim = 1

    def __call__(self, u: Tensor, numbers: Numbers) -> Tensor:
        return u

    def slight(self, u: Tensor, numbers: Numbers) -> Tensor:
        """The same."""
        return u


@dataclass(frozen=True)
class Noise:
    """Vectors moved by noise that is uniform within ±spread in each coordinate."""

    dim: int
    spread: float = 0.1
    """In deviations of the data."""

    def __call__(self, u: Float[Tensor, "batch dim"], numbers: Numbers) -> Float[Tensor, "batch dim"]:
        return u + self.spread * numbers

    def slight(self, u: Float[Tensor, "batch dim"], numbers: Numbers) -> Float[Tensor, "batch dim"]:
        """A quarter of it."""
        return u + 0.25 * self.spread * numbers


@dataclass(frozen=True)
class Distortion:
    """Pictures turned, stretched, sheared and moved a little, and recoloured: u_c ↦ gain_c u_c + level_c.

    What comes in at the edges is the edge itself. Recolouring and negatives are right where colours do not tell classes
    apart; where they do, use gain=0, level=0, negative=False.
    """

    turn: float = 0.25
    """Largest angle, in radians."""
    stretch: float = 0.2
    """Largest relative change of height and width, each."""
    shear: float = 0.2
    shift: float = 0.1
    """Of the picture's size."""
    gain: float = 0.5
    """Largest relative change of contrast, of each channel."""
    level: float = 0.5
    """Largest change of brightness, of each channel; pictures are within ±1."""
    negative: bool = True
    """Whether every fourth picture is turned into its negative."""

    dim = 13
    """Numbers for each picture; channels beyond the third are recoloured as the first three."""

    def __call__(self, u: Pictures, numbers: Numbers) -> Pictures:
        turn, high, wide, shear, down, across, sign, *colours = numbers.unbind(1)
        cos, sin = (self.turn * turn).cos(), (self.turn * turn).sin()
        high, wide = 1 + self.stretch * high, 1 + self.stretch * wide
        across, down = 2 * self.shift * across, 2 * self.shift * down
        sheared = (self.shear * shear - sin) * high
        theta = torch.stack((cos * wide, sheared, across, sin * wide, cos * high, down), dim=1).view(-1, 2, 3)
        with torch.autocast(u.device.type, enabled=False):
            grid = functional.affine_grid(theta, list(u.shape), align_corners=False)
            moved = functional.grid_sample(u.to(theta.dtype), grid, padding_mode="border", align_corners=False)
        return self._recoloured(moved, sign, colours)

    def slight(self, u: Pictures, numbers: Numbers) -> Pictures:
        """Only moved, and half as far."""
        return replace(
            self, turn=0.0, stretch=0.0, shear=0.0, shift=self.shift / 2, gain=0.0, level=0.0, negative=False
        )(u, numbers)

    def _recoloured(self, u: Pictures, sign: Tensor, colours: list[Tensor]) -> Pictures:
        if not (self.gain or self.level or self.negative):
            return u
        channels = [k % 3 for k in range(u.shape[1])]
        gain = torch.stack([1 + self.gain * colours[k] for k in channels], dim=1)[..., None, None]
        level = torch.stack([self.level * colours[3 + k] for k in channels], dim=1)[..., None, None]
        flipped = torch.where(sign < -0.5, -1.0, 1.0)[:, None, None, None] if self.negative else 1.0
        return u * flipped * gain + level
