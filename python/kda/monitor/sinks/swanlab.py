"""SwanLab, online or as an offline run folder for ``swanlab sync``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from kda.monitor.errors import require
from kda.monitor.ping import check_link, has_key, swanlab_host
from kda.monitor.points import Point, Scalar
from kda.monitor.service import ServiceSink, ids_of, new_id, remove_other_folders
from kda.monitor.sinks import Batch, Target

NAME = "swanlab"


class SwanLabSink(ServiceSink):
    """The library's own key files are not read."""

    service = "SwanLab"
    modes: ClassVar = {
        "online": "online",
        "cloud": "online",
        "offline": "offline",
        "local": "local",
        "disabled": "disabled",
    }
    mode_variable = "SWANLAB_MODE"

    def open(self, target: Target) -> bool:
        folder = target.out / NAME
        folder.mkdir(parents=True, exist_ok=True)
        self._isolate(folder)
        self._library = require("swanlab", "swanlab")
        if self._mode == "local":
            require("swanboard", "'swanlab[dashboard]'")
        self._ids = ids_of(target, new_id())
        chosen = os.environ.get("SWANLAB_LOGDIR") or os.environ.get("SWANLAB_LOG_DIR")
        self._owns_parent = not chosen
        self._parent = Path(chosen).absolute() if chosen else folder
        self._parent.mkdir(parents=True, exist_ok=True)
        if self._mode == "online" and not self._can_go_online():
            self._mode = "offline"
        self._start_or_offline(target)
        return False

    def _isolate(self, folder: Path) -> None:
        """Away from key files in the home and working folders."""
        os.environ["SWANLAB_ROOT"] = str(folder / "no-key-file")
        os.environ.pop("SWANLAB_SAVE_DIR", None)
        os.chdir(folder)

    def _can_go_online(self) -> bool:
        again = "; export it again when that has changed, or use `swanlab sync`"
        if not has_key():
            self._warn(f"SWANLAB_API_KEY is not set: writing an offline run{again}")
            return False
        link = check_link(swanlab_host())
        if not link.is_ok:
            self._warn(f"{link.host}: {link.status}: writing an offline run{again}")
        return link.is_ok

    def _start(self, target: Target, mode: str) -> None:
        settings = self._library.Settings
        given = self._options
        is_online = mode == "online"
        self._run = self._library.init(
            mode=mode,
            log_dir=str(self._parent),
            project=given.project or (None if _has("SWANLAB_PROJ_NAME") else "kda"),
            workspace=given.workspace,
            name=given.name or (None if _has("SWANLAB_EXP_NAME") else self._title(target)),
            id=self._ids[-1],
            resume="allow" if is_online else None,
            config=target.run.config(),
            settings=settings(
                interactive=False,
                # What is known of this machine is not what the run was made on.
                probe=settings.Probe(
                    hardware=False,
                    runtime=False,
                    requirements=False,
                    conda=False,
                    git=False,
                    swanlab=False,
                    monitor=False,
                ),
                terminal=settings.Terminal(proxy_type="none"),
            ),
        )
        if mode != "disabled":
            self._folder = Path(self._run.dir).absolute()
        if len(self._ids) > 1 and is_online and target.is_new:
            self._say(f"SwanLab: the run goes on under the new id {self._ids[-1]}")

    def write(self, batch: Sequence[Batch]) -> None:
        for line in batch:
            by_step: dict[int, dict[str, Any]] = {}
            for point in line.points:
                by_step.setdefault(point.step, {})[point.name] = self._value(point)
            for step, values in by_step.items():
                self._run.log(values, step=step)

    def _value(self, point: Point) -> Any:
        if isinstance(point, Scalar):
            return point.value
        return self._library.Text(point.text or " ", caption=point.prompt[:200] or None)

    def _remove_superseded(self) -> None:
        patterns = ["run-*"] if self._owns_parent else [f"run-*-{name}" for name in self._ids]
        for pattern in patterns:
            remove_other_folders(self._parent, pattern, self._folder)


def _has(variable: str) -> bool:
    return bool(os.environ.get(variable))
