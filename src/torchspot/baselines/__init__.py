"""Other people's methods, on the same loop, to compare with."""

__all__ = ["ROT", "CoGAN", "DeepJDOT", "MinibatchRegression", "Supervised"]

from torchspot.baselines.cogan import CoGAN
from torchspot.baselines.deepjdot import DeepJDOT
from torchspot.baselines.minibatch import MinibatchRegression
from torchspot.baselines.rot import ROT
from torchspot.baselines.supervised import Supervised
