"""SwanLab and Weights & Biases: offline runs read back, no network, no key, no key anywhere."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kda.monitor import service
from kda.monitor.errors import MonitorError, UsageError
from monitor_run import (
    FakeRun,
    monitor,
    need,
    only_checked,
    read_swanlab,
    read_wandb,
    start_monitor,
)

KEY = "k3y0f4service" * 3 + "x"  # 40 characters, which W&B wants


@dataclass(frozen=True)
class Service:
    name: str
    read: Callable
    key: str
    host: str
    mode: str
    pattern: str


SERVICES = [
    Service(
        "swanlab", read_swanlab, "SWANLAB_API_KEY", "SWANLAB_API_HOST", "SWANLAB_MODE", "run-*"
    ),
    Service(
        "wandb", read_wandb, "WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE", "wandb/offline-run-*"
    ),
]


@pytest.fixture(params=SERVICES, ids=lambda which: which.name)
def where(request) -> Service:
    need(request.param.name)
    return request.param


@pytest.fixture
def run(tmp_path: Path) -> FakeRun:
    made = FakeRun(tmp_path / "run", total_steps=60)
    made.put({"kind": "step", "step": 0, "loss": "nan", "lr": "inf", "step_ms": 1})
    return made


def out(run: FakeRun, where: Service) -> Path:
    return run.folder / "monitor" / where.name


def same(run: FakeRun, where: Service) -> bool:
    """Every point of the log is there once; NaN and infinities are compared as text."""
    got = {key: str(value) for key, value in only_checked(where.read(out(run, where))).items()}
    return got == {key: str(value) for key, value in run.points().items()}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def files_with(text: str, *folders: Path) -> list[Path]:
    return [
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]


def test_offline_later_again_and_back(run: FakeRun, where: Service, tmp_path: Path) -> None:
    """The same command at any time leaves one folder with every point of the log once."""
    home = tmp_path / "home"
    home.mkdir()
    key = {where.key: KEY, "HOME": str(home)}
    run.steps(1, 12)
    run.put({"kind": "sample", "step": 12, "prompt": "p\x00<b>", "text": "汉\n字"})
    done = monitor(where.name, run.folder, "--mode", "offline", **key)
    assert done.returncode == 0, done.stderr
    assert same(run, where)
    run.steps(13, 37)
    again = monitor(where.name, run.folder, **{where.mode: "offline"}, **key)
    assert again.returncode == 0, again.stderr
    assert same(run, where)
    first = [path.name for path in out(run, where).glob(where.pattern)]
    run.resume(20)
    run.steps(21, 30)
    back = monitor(where.name, run.folder, "--mode", "offline", **key)
    assert back.returncode == 0, back.stderr
    assert same(run, where)
    assert "training went back" in back.stdout
    second = [path.name for path in out(run, where).glob(where.pattern)]
    assert len(first) == len(second) == 1
    # A service takes nothing back: the run goes on under another id.
    assert first[0].rpartition("-")[2] != second[0].rpartition("-")[2]
    for text in (done, again, back):
        assert KEY not in text.stdout + text.stderr
    assert files_with(KEY, run.folder, home) == []
    assert files_with("汉", run.folder / "monitor") != []


def test_without_a_key_the_run_is_offline(run: FakeRun, where: Service, tmp_path: Path) -> None:
    """Also when a key file of the library lies in the home folder or here."""
    home = tmp_path / "home"
    (home / ".swanlab").mkdir(parents=True)
    for place in (home / ".swanlab" / ".netrc", home / ".netrc"):
        place.write_text(
            f"machine https://api.swanlab.cn\nlogin https://swanlab.cn\npassword {KEY}"
        )
    run.steps(1, 5)
    done = monitor(where.name, run.folder, HOME=str(home))
    assert done.returncode == 0, done.stderr
    assert f"{where.key} is not set: writing an offline run" in done.stderr
    assert same(run, where)
    assert KEY not in done.stdout + done.stderr
    assert files_with(KEY, run.folder) == []


def test_a_dead_network_gives_an_offline_run(run: FakeRun, where: Service, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    run.steps(1, 5)
    dead = f"http://127.0.0.1:{free_port()}"
    done = monitor(where.name, run.folder, HOME=str(home), **{where.key: KEY, where.host: dead})
    assert done.returncode == 0, done.stderr
    assert "writing an offline run" in done.stderr
    assert same(run, where)
    assert KEY not in done.stdout + done.stderr
    assert files_with(KEY, run.folder, home) == []


def test_names_of_the_environment_are_kept(run: FakeRun, tmp_path: Path) -> None:
    need("swanlab")
    run.steps(1, 3)
    logs = tmp_path / "logs"
    done = monitor(
        "swanlab",
        run.folder,
        SWANLAB_MODE="offline",
        SWANLAB_PROJ_NAME="my-project",
        SWANLAB_EXP_NAME="my-experiment",
        SWANLAB_LOGDIR=str(logs),
    )
    assert done.returncode == 0, done.stderr
    assert len(read_swanlab(logs)) > 0
    (file,) = logs.glob("run-*/*.swanlab")
    assert b"my-project" in file.read_bytes()
    assert b"my-experiment" in file.read_bytes()


@pytest.mark.slow
def test_killed_twenty_times(run: FakeRun, where: Service) -> None:
    draw = random.Random(5)
    step = 300
    run.steps(1, step)
    place = run.folder / "monitor" / f"{where.name}.position.json"
    for number in range(20):
        before = place.read_bytes() if place.exists() else b""
        run.steps(step + 1, step + 5)
        step += 5
        words = ("--mode", "offline", "--follow", "--interval", "0.05")
        process = start_monitor(where.name, run.folder, *words)
        deadline = time.monotonic() + 60
        while number % 4 != 3 and time.monotonic() < deadline:
            if place.exists() and place.read_bytes() != before:
                break
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if number % 7 == 6:
            step -= 30
            run.resume(step)
    done = monitor(where.name, run.folder, "--mode", "offline")
    assert done.returncode == 0, done.stderr
    assert same(run, where)
    assert len(list(out(run, where).glob(where.pattern))) == 1


def test_follow_ends_with_the_run(run: FakeRun, where: Service) -> None:
    words = ("--mode", "offline", "--follow", "--interval", "0.05")
    process = start_monitor(where.name, run.folder, *words)
    run.steps(1, 40)
    time.sleep(0.2)
    run.steps(41, 60)
    run.save(60)
    assert process.wait(120) == 0
    assert same(run, where)


def test_modes() -> None:
    known = {"online": "online", "cloud": "online", "offline": "offline"}
    assert service.choose_mode(None, "X", known, {}) == "online"
    assert service.choose_mode(None, "X", known, {"X": "cloud"}) == "online"
    assert service.choose_mode("offline", "X", known, {"X": "cloud"}) == "offline"
    with pytest.raises(UsageError, match="X: expected one of online, cloud, offline, got 'sky'"):
        service.choose_mode(None, "X", known, {"X": "sky"})


def test_errors_of_libraries_are_one_line_without_keys(monkeypatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    error = ValueError(f"1 error\n\n  key\n  got {KEY}, expected another\n  more")
    assert service.one_line(error) == "1 error; key; got ***, expected another"
    assert service.one_line(ValueError()) == "ValueError"


def test_ids_are_distinct_and_plain() -> None:
    ids = {service.new_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(text) == 21 and text.isalnum() and text.isascii() for text in ids)


def test_a_job_that_fails_or_hangs_is_an_error() -> None:
    service.within(5, lambda: None, "x")
    with pytest.raises(MonitorError, match="x: no; more"):
        service.within(5, lambda: (_ for _ in ()).throw(ValueError("no\nmore")).__next__(), "x")


def test_a_job_that_hangs_ends_the_process() -> None:
    code = "import time; from kda.monitor.service import within; within(.2, lambda: time.sleep(60), 'x')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        env={"PYTHONPATH": "python"},
        check=False,
    )
    assert done.returncode == 1
    assert "x: not done within" in done.stderr
