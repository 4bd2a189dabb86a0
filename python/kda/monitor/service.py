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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from kda.monitor.errors import MonitorError, UsageError
from kda.monitor.sinks import Say, Sink, Target

_LETTERS = string.ascii_lowercase + string.digits
_FINISH_S = 120.0


@dataclass(frozen=True)
class ServiceOptions:
    mode: str  #: as ``choose_mode`` gives it
    project: str | None = None
    name: str | None = None
    workspace: str | None = None  #: what W&B calls an entity


class ServiceSink(Sink):
    """How both begin and end; the key comes from the environment alone, and nothing here writes or
    prints it. A subclass opens the library, starts a run, writes lines and removes old folders."""

    replays = True
    service: ClassVar[str]  #: its name in messages
    modes: ClassVar[Mapping[str, str]]  #: words for a mode, older names too -> the mode
    mode_variable: ClassVar[str]  #: of the environment

    def __init__(self, options: ServiceOptions, say: Say, warn: Say) -> None:
        self._options = options
        self._say = say
        self._warn = warn
        self._mode = options.mode
        self._ids: list[str] = []  #: newest last; older ones were superseded
        self._library: Any = None
        self._run: Any = None
        self._parent = Path()
        self._folder = Path()
        self._has_caught_up = False

    def commit(self) -> dict[str, Any]:
        return {"ids": self._ids, "mode": self._mode, "folder": str(self._folder)}

    def caught_up(self) -> None:
        self._has_caught_up = True

    def close(self) -> None:
        if self._run is None:
            return
        run, self._run = self._run, None
        within(_FINISH_S, run.finish, f"{self.service}: sending the last points")
        # The new folder is complete now; before, the old one had more.
        if self._mode != "disabled" and self._has_caught_up:
            self._remove_superseded()

    def _start_or_offline(self, target: Target) -> None:
        """Starts the run in the mode asked for; where the service does not answer, offline."""
        if self._mode == "online":
            try:
                self._start(target, "online")
                return
            except Exception as error:  # whatever the library throws, the run is not lost
                self._warn(
                    f"{self.service}: not online ({one_line(error)}); writing an offline run"
                )
                self._give_up_online()
                self._mode = "offline"
        try:
            self._start(target, self._mode)
        except Exception as error:
            raise MonitorError(f"{self.service}, {self._mode}: {one_line(error)}") from error

    def _title(self, target: Target) -> str:
        name = target.run.name
        return name if target.generation == 1 else f"{name} ({target.generation})"

    def _start(self, target: Target, mode: str) -> None:
        raise NotImplementedError

    def _give_up_online(self) -> None:
        """What a library needs before another start."""

    def _remove_superseded(self) -> None:
        raise NotImplementedError


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
