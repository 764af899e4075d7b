"""What users call."""

__all__ = ["DASPOT", "SPOT", "EntropicSPOT", "presets"]

from torchspot.estimators import presets
from torchspot.estimators.daspot import DASPOT
from torchspot.estimators.entropic import EntropicSPOT
from torchspot.estimators.spot import SPOT
