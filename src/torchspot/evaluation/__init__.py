"""Judges of plans. Solvers never import this."""

__all__ = ["Audit", "Certificate", "MarginalAudit", "TooFewRows", "audit", "barycenter", "certify", "images"]

from torchspot.evaluation import images
from torchspot.evaluation.audit import Audit, MarginalAudit, audit
from torchspot.evaluation.barycenters import barycenter
from torchspot.evaluation.certificates import Certificate, TooFewRows, certify
