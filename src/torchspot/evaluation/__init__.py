"""Judges of plans. Solvers never import this."""

__all__ = ["Audit", "MarginalAudit", "audit"]

from torchspot.evaluation.audit import Audit, MarginalAudit, audit
