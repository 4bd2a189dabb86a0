"""What SwanLab and Weights & Biases have in common.

Their libraries buffer what they are given and cannot append to a local run folder, so nobody can
know what a killed exporter left there. Each start therefore gives the library the log from its
beginning: into a new local folder that replaces the old one once it has as much; online, the
service says what it has already and that is not sent again.
"""

from __future__ import annotations

import os
import secrets
import shutil
import string
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from kda.monitor.errors import MonitorError, UsageError
from kda.monitor.sinks import Target

_LETTERS = string.ascii_lowercase + string.digits


def new_id(length: int = 21) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(length))


def ids_of(target: Target, fresh: str) -> list[str]:
    """Ids of the run in the service, newest last. A service takes no point back, so what training
    repeats goes to a new run: ``fresh`` is added. The older ones are kept in mind for their local
    folders, which a killed exporter could not remove."""
    known = target.state.get("ids")
    ids = [str(identity) for identity in known] if isinstance(known, list) else []
    return [*ids, fresh] if target.is_new or not ids else ids


def choose_mode(
    asked: str | None,
    variable: str,
    known: Mapping[str, str],
    environment: Mapping[str, str] = os.environ,
) -> str:
    """The mode of the flag, else of the environment variable, else online. ``known`` maps each
    legal word to its meaning (older names)."""
    word, origin = asked, "--mode"
    if word is None:
        word, origin = environment.get(variable) or "online", variable
    if word not in known:
        raise UsageError(f"{origin}: expected one of {', '.join(known)}, got {word!r}")
    return known[word]


def remove_other_folders(parent: Path, pattern: str, keep: Path) -> None:
    for folder in parent.glob(pattern):
        if folder.is_dir() and not folder.is_symlink() and folder.resolve() != keep.resolve():
            shutil.rmtree(folder, ignore_errors=True)


def within(seconds: float, job: Callable[[], object], what: str) -> None:
    """Runs ``job`` (here, not in a thread: the libraries change signal handlers). They wait for a
    dead network without end, and at exit once more, so a job that is not done in time ends the
    process with exit code 1. Throws MonitorError when the job fails."""

    def give_up() -> None:
        print(
            f"error: {what}: not done within {seconds:.0f} s; run the same command again",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)

    watchdog = threading.Timer(seconds, give_up)
    watchdog.daemon = True
    watchdog.start()
    try:
        job()
    except Exception as error:
        raise MonitorError(f"{what}: {one_line(error)}") from error
    finally:
        watchdog.cancel()


def one_line(error: BaseException) -> str:
    """The beginning of an error of a library, in one line and without a key that it may quote."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = "; ".join(lines[:3]) or type(error).__name__
    for variable in ("SWANLAB_API_KEY", "WANDB_API_KEY"):
        if key := os.environ.get(variable, "").strip():
            text = text.replace(key, "***")
    return text[:300]
