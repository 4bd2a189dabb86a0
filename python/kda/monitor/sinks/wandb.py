"""Weights & Biases, online or as an offline run folder for ``wandb sync``.

Each line of the log is one row of the run, and the row's number in the service is the line's, so
that the service itself says from which line to go on. Charts are drawn over the training step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from kda.monitor.errors import require
from kda.monitor.points import Scalar
from kda.monitor.service import ServiceSink, ids_of, new_id, remove_other_folders
from kda.monitor.sinks import Batch, Target

NAME = "wandb"
_INIT_S = 20.0


class WandbSink(ServiceSink):
    """Online only with WANDB_API_KEY."""

    service = "W&B"
    modes: ClassVar = {
        "online": "online",
        "run": "online",
        "offline": "offline",
        "dryrun": "offline",
        "disabled": "disabled",
    }
    mode_variable = "WANDB_MODE"

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
        self._start_or_offline(target)
        return False

    def _give_up_online(self) -> None:
        self._library.teardown()  # its process still holds the id

    def _start(self, target: Target, mode: str) -> None:
        given = self._options
        self._run = self._library.init(
            mode=mode,
            dir=str(self._parent),
            project=given.project or os.environ.get("WANDB_PROJECT") or "kda",
            entity=given.workspace,
            name=given.name or os.environ.get("WANDB_NAME") or self._title(target),
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

    def _remove_superseded(self) -> None:
        remove_other_folders(self._parent / "wandb", "*run-*-*", self._folder)
