"""Weights & Biases, online or as an offline run folder for ``wandb sync``.

Each line of the log is one row of the run, and the row's number in the service is the line's, so
that the service itself says from which line to go on. Charts are drawn over the training step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kda.monitor.errors import MonitorError, require
from kda.monitor.points import Scalar
from kda.monitor.service import choose_mode, ids_of, new_id, one_line, remove_other_folders, within
from kda.monitor.sinks import Batch, Say, Target

NAME = "wandb"
MODES = {
    "online": "online",
    "run": "online",
    "offline": "offline",
    "dryrun": "offline",
    "disabled": "disabled",
}
_INIT_S = 20.0
_FINISH_S = 120.0


@dataclass(frozen=True)
class WandbOptions:
    mode: str  #: a value of MODES
    project: str | None = None
    name: str | None = None
    workspace: str | None = None  #: what W&B calls an entity


def wandb_mode(asked: str | None) -> str:
    return choose_mode(asked, "WANDB_MODE", MODES)


class WandbSink:
    """Online only with WANDB_API_KEY; nothing here writes or prints it."""

    replays = True

    def __init__(self, options: WandbOptions, say: Say, warn: Say) -> None:
        self._options = options
        self._say = say
        self._warn = warn
        self._mode = options.mode
        self._ids: list[str] = []  #: newest last; older ones were superseded
        self._run: Any = None
        self._folder = Path()
        self._parent = Path()
        self._library: Any = None
        self._first_line = 0
        self._has_caught_up = False

    def open(self, target: Target) -> bool:
        self._parent = target.out / NAME
        self._parent.mkdir(parents=True, exist_ok=True)
        self._library = require("wandb", "wandb")
        self._ids = ids_of(target, new_id(8))
        if self._mode == "online" and not os.environ.get("WANDB_API_KEY", "").strip():
            self._warn(
                "WANDB_API_KEY is not set: writing an offline run; export it again with a key, or "
                "use `wandb sync`"
            )
            self._mode = "offline"
        if self._mode == "online":
            try:
                self._start(target, "online")
                return False
            except Exception as error:  # whatever the library throws, the run is not lost
                self._warn(f"W&B: not online ({one_line(error)}); writing an offline run")
                self._library.teardown()  # its process still holds the id
                self._mode = "offline"
        try:
            self._start(target, self._mode)
        except Exception as error:
            raise MonitorError(f"W&B, {self._mode}: {one_line(error)}") from error
        return False

    def _start(self, target: Target, mode: str) -> None:
        given = self._options
        title = target.run.name
        if target.generation > 1:
            title += f" ({target.generation})"
        self._run = self._library.init(
            mode=mode,
            dir=str(self._parent),
            project=given.project or os.environ.get("WANDB_PROJECT") or "kda",
            entity=given.workspace,
            name=given.name or os.environ.get("WANDB_NAME") or title,
            id=self._ids[-1],
            resume="allow" if mode == "online" else None,
            config=target.run.config(),
            settings=self._library.Settings(
                console="off",
                silent=True,
                init_timeout=_INIT_S,
                # What is known of this machine is not what the run was made on.
                disable_code=True,
                disable_git=True,
                save_code=False,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        self._first_line = int(self._run.step) if mode == "online" else 0
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        if mode != "disabled":
            self._folder = Path(self._run.dir).parent.absolute()
        if mode == "online":
            self._say(f"W&B: {self._run.url}")

    def write(self, batch: Sequence[Batch]) -> None:
        for line in batch:
            if line.line < self._first_line:
                continue  # the service has it
            row: dict[str, Any] = {"step": line.points[0].step}
            for point in line.points:
                row[point.name] = (
                    point.value if isinstance(point, Scalar) else f"{point.prompt}⟶{point.text}"
                )
            self._run.log(row, step=line.line)

    def commit(self) -> dict[str, Any]:
        return {"ids": self._ids, "mode": self._mode, "folder": str(self._folder)}

    def caught_up(self) -> None:
        self._has_caught_up = True

    def close(self) -> None:
        if self._run is None:
            return
        run, self._run = self._run, None
        within(_FINISH_S, run.finish, "W&B: sending the last points")
        if self._mode == "disabled" or not self._has_caught_up:
            return
        remove_other_folders(self._parent / "wandb", "*run-*-*", self._folder)
