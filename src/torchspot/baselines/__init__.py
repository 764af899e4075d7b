"""Other people's methods, on the same loop, to compare with."""

__all__ = ["ROT", "CoGAN", "MinibatchRegression"]

from torchspot.baselines.cogan import CoGAN
from torchspot.baselines.minibatch import MinibatchRegression
from torchspot.baselines.rot import ROT
