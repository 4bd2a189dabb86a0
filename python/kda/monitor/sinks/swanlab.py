"""SwanLab, online or as an offline run folder for ``swanlab sync``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kda.monitor.errors import MonitorError, require
from kda.monitor.ping import check_link, has_key, swanlab_host
from kda.monitor.points import Point, Scalar
from kda.monitor.service import choose_mode, ids_of, new_id, one_line, remove_other_folders, within
from kda.monitor.sinks import Batch, Say, Target

NAME = "swanlab"
MODES = {
    "online": "online",
    "cloud": "online",
    "offline": "offline",
    "local": "local",
    "disabled": "disabled",
}
_FINISH_S = 120.0


@dataclass(frozen=True)
class SwanLabOptions:
    mode: str  #: a value of MODES
    project: str | None = None
    name: str | None = None
    workspace: str | None = None


def swanlab_mode(asked: str | None) -> str:
    return choose_mode(asked, "SWANLAB_MODE", MODES)


class SwanLabSink:
    """The key comes from SWANLAB_API_KEY alone: the library's own key files are not read, and
    nothing here writes or prints it."""

    replays = True

    def __init__(self, options: SwanLabOptions, say: Say, warn: Say) -> None:
        self._options = options
        self._say = say
        self._warn = warn
        self._mode = options.mode
        self._ids: list[str] = []  #: newest last; older ones were superseded
        self._run: Any = None
        self._folder = Path()
        self._library: Any = None
        self._owns_parent = True
        self._has_caught_up = False

    def open(self, target: Target) -> bool:
        folder = target.out / NAME
        folder.mkdir(parents=True, exist_ok=True)
        self._isolate(folder)
        self._library = require("swanlab", "swanlab")
        if self._mode == "local":
            require("swanboard", "'swanlab[dashboard]'")
        # A service takes no point back: what training repeats goes to a new run.
        self._ids = ids_of(target, new_id())
        chosen = os.environ.get("SWANLAB_LOGDIR") or os.environ.get("SWANLAB_LOG_DIR")
        self._owns_parent = not chosen
        self._parent = Path(chosen).absolute() if chosen else folder
        self._parent.mkdir(parents=True, exist_ok=True)
        if self._mode == "online" and self._can_go_online():
            try:
                self._start(target, "online")
                return False
            except Exception as error:  # whatever the library throws, the run is not lost
                self._warn(f"SwanLab: not online ({one_line(error)}); writing an offline run")
        self._mode = "offline" if self._mode == "online" else self._mode
        try:
            self._start(target, self._mode)
        except Exception as error:
            raise MonitorError(f"SwanLab, {self._mode}: {one_line(error)}") from error
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
        title = target.run.name
        if target.generation > 1:
            title += f" ({target.generation})"
        self._run = self._library.init(
            mode=mode,
            log_dir=str(self._parent),
            project=given.project or (None if _has("SWANLAB_PROJ_NAME") else "kda"),
            workspace=given.workspace,
            name=given.name or (None if _has("SWANLAB_EXP_NAME") else title),
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

    def commit(self) -> dict[str, Any]:
        return {"ids": self._ids, "mode": self._mode, "folder": str(self._folder)}

    def caught_up(self) -> None:
        self._has_caught_up = True

    def close(self) -> None:
        if self._run is None:
            return
        run, self._run = self._run, None
        within(_FINISH_S, run.finish, "SwanLab: sending the last points")
        if self._mode == "disabled" or not self._has_caught_up:
            return
        # The new folder is complete now; before, the old one had more.
        patterns = ["run-*"] if self._owns_parent else [f"run-*-{name}" for name in self._ids]
        for pattern in patterns:
            remove_other_folders(self._parent, pattern, self._folder)


def _has(variable: str) -> bool:
    return bool(os.environ.get(variable))
