"""What the command lines of this package share: one line per error, and exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import ClassVar, NoReturn


class JobError(Exception):
    """A failure that is told in one line; the text names what was wrong and what was expected."""

    exit_code: ClassVar = 1


class Parser(argparse.ArgumentParser):
    """Wrong usage is one line, too (exit code 2)."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message} (see --help)", file=sys.stderr)
        raise SystemExit(2)


def print_error(program: str, message: object) -> None:
    print(f"{program}: error: {message}", file=sys.stderr)


def guarded(job: Callable[[], int], program: str, interrupted: str = "") -> int:
    """Runs ``job``; turns its errors into one line on standard error and an exit code.

    ``interrupted`` is said after Ctrl-C (exit code 130)."""
    try:
        return job()
    except JobError as error:
        print_error(program, error)
        return error.exit_code
    except OSError as error:  # a full disk, a folder that may not be written
        place = f"{error.filename}: " if error.filename else ""
        print_error(program, f"{place}{error.strerror or error}")
        return 1
    except KeyboardInterrupt:
        if interrupted:
            print(interrupted, file=sys.stderr)
        return 130
