"""Other people's methods, on the same loop, to compare with."""

__all__ = ["ROT"]

from torchspot.baselines.rot import ROT
