"""What users call."""

__all__ = ["SPOT", "EntropicSPOT", "presets"]

from torchspot.estimators import presets
from torchspot.estimators.entropic import EntropicSPOT
from torchspot.estimators.spot import SPOT
