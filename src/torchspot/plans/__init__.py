"""What solvers return and judges take: plans one can draw from, save and load."""

__all__ = ["ConditionalPlan", "DensityPlan", "PooledPlan", "PushforwardPlan", "load", "pooled"]

from torchspot.plans.conditional import ConditionalPlan
from torchspot.plans.density import DensityPlan
from torchspot.plans.loading import load
from torchspot.plans.pooled import PooledPlan, pooled
from torchspot.plans.pushforward import PushforwardPlan
