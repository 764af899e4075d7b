"""Other people's methods, on the same loop, to compare with."""

__all__ = ["ROT", "MinibatchRegression"]

from torchspot.baselines.minibatch import MinibatchRegression
from torchspot.baselines.rot import ROT
