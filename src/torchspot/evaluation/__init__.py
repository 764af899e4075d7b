"""Judges of plans. Solvers never import this."""

__all__ = ["Audit", "Certificate", "MarginalAudit", "TooFewRows", "audit", "certify"]

from torchspot.evaluation.audit import Audit, MarginalAudit, audit
from torchspot.evaluation.certificates import Certificate, TooFewRows, certify
