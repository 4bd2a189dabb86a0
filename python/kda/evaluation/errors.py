"""Errors that the command line turns into one clear line and an exit code."""

from __future__ import annotations


class EvaluationError(Exception):
    """The job failed (exit code 1). The text names the file and what was expected."""


class UsageError(EvaluationError):
    """The request itself makes no sense (exit code 2)."""
