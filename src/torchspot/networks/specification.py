"""Library generators as names and numbers that can be written to a file, and back."""

__all__ = ["from_spec", "to_spec"]

from typing import Any

import torch
from torch import nn

from torchspot.networks.anchored import AnchoredGenerator
from torchspot.networks.convolutional import PictureGenerator, pictures
from torchspot.networks.generators import (
    AroundAffine,
    SeparateGenerator,
    Shapes,
    SharedTrunkGenerator,
    around_affine,
    separate,
    shared_trunk,
)
from torchspot.networks.ode import Flow, flow
from torchspot.networks.tied import TiedGenerator, tied
from torchspot.networks.translated import Residual, TranslatedGenerator, translated

_KINDS: dict[str, tuple[type[nn.Module], Any]] = {
    "separate": (SeparateGenerator, separate),
    "around_affine": (AroundAffine, around_affine),
    "shared_trunk": (SharedTrunkGenerator, shared_trunk),
    "flow": (Flow, flow),
    "pictures": (PictureGenerator, pictures),
    "tied": (TiedGenerator, tied),
}


def to_spec(generator: nn.Module) -> dict[str, Any] | None:
    """Name and arguments of a library generator; None for a network of the user's own."""
    if isinstance(generator, AnchoredGenerator):
        inner = [to_spec(network) for network in generator.networks]
        return None if None in inner else {"name": "anchored", "at": list(generator.at), "networks": inner}
    if isinstance(generator, TranslatedGenerator) and isinstance(generator.change, Residual):
        first, width, moved = to_spec(generator.first), generator.change.width, generator.matrix is not None
        return None if first is None else {"name": "translated", "first": first, "width": width, "moved": moved}
    for name, (kind, _) in _KINDS.items():
        if type(generator) is kind:
            return {"name": name, "width": generator.width, "depth": generator.depth}
    return None


def from_spec(spec: dict[str, Any], shapes: Shapes) -> nn.Module:
    """The generator that `to_spec` described, on the meta device: it takes no memory before its weights are known."""
    if spec["name"] == "anchored":
        at, networks = tuple(spec["at"]), spec["networks"]
        if len(at) > len(shapes.marginals) or any(inner["name"] == "anchored" for inner in networks):
            raise ValueError(f"an anchored generator of {len(at)} networks")
        noise = shapes.latent - sum(shapes.sizes[a] for a in at)
        pairs = zip(at, networks, strict=True)
        return AnchoredGenerator([from_spec(inner, shapes.beside(a, noise)) for a, inner in pairs], shapes, at)
    width, depth = spec["width"], 1 if spec["name"] == "translated" else spec["depth"]
    if not (isinstance(width, int) and isinstance(depth, int) and 1 <= width <= 2**20 and 1 <= depth <= 1000):
        raise ValueError(f"a generator of width {width!r} and depth {depth!r}")
    with torch.device("meta"):
        if spec["name"] == "translated":
            return _translation(spec, shapes)
        return _KINDS[spec["name"]][1](width, depth)(shapes, torch.Generator())


def _translation(spec: dict[str, Any], shapes: Shapes) -> nn.Module:
    first = spec["first"]
    if first["name"] not in _KINDS or len(shapes.marginals) != 2 or shapes.marginals[0] != shapes.marginals[1]:
        raise ValueError(f"a translation of {first['name']!r} between {shapes.marginals}")
    start = torch.empty(shapes.sizes[0], shapes.sizes[0]) if spec["moved"] else None
    return translated(lambda one, _: from_spec(first, one), spec["width"], start)(shapes, torch.Generator())
