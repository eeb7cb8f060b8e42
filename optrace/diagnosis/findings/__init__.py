"""What is worth changing in a run, where, and what it would buy: one small function a kind, in one table."""

from optrace.diagnosis.findings.finding import Finding, Severity
from optrace.diagnosis.findings.search import find
from optrace.diagnosis.findings.table import KINDS, Kind

__all__ = ["KINDS", "Finding", "Kind", "Severity", "find"]
