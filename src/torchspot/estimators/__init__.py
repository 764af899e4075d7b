"""What users call."""

__all__ = ["SPOT", "presets"]

from torchspot.estimators import presets
from torchspot.estimators.spot import SPOT
