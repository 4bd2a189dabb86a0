"""Errors that the command line turns into one clear line and an exit code."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import ClassVar

from kda.command_line import JobError


class MonitorError(JobError):
    """The job failed (exit code 1). The text names the file or service and what was expected."""


class UsageError(MonitorError):
    """The request itself makes no sense (exit code 2)."""

    exit_code: ClassVar = 2


def require(module: str, package: str) -> ModuleType:
    """Import an optional library; a missing one is an error with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MonitorError(
            f"the Python package {package} is needed and not installed ({error}): "
            f"{sys.executable} -m pip install {package}"
        ) from error
