"""Errors that the command line turns into one clear line and an exit code."""

from __future__ import annotations

from typing import ClassVar

from kda.command_line import JobError


class CorpusError(JobError):
    """The job failed (exit code 1). The text names the file or package and what was expected."""


class UsageError(CorpusError):
    """The request itself makes no sense (exit code 2)."""

    exit_code: ClassVar = 2
