"""The rules, a module a subject."""

from optrace.diagnosis.findings.rules import syncs

__all__ = ["syncs"]
