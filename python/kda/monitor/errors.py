"""Errors that the command line turns into one clear line and an exit code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType


class MonitorError(Exception):
    """The job failed (exit code 1). The text names the file or service and what was expected."""


class UsageError(MonitorError):
    """The request itself makes no sense (exit code 2)."""


def require(module: str, package: str) -> ModuleType:
    """Import an optional library; a missing one is an error with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MonitorError(
            f"the Python package {package} is needed and not installed ({error}): "
            f"{sys.executable} -m pip install {package}"
        ) from error


def guarded(job: Callable[[], int], program: str) -> int:
    """Runs ``job``; turns its errors into one line on standard error and an exit code."""
    try:
        return job()
    except MonitorError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except OSError as error:  # a full disk, a folder that may not be written
        place = f"{error.filename}: " if error.filename else ""
        print(f"{program}: error: {place}{error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
