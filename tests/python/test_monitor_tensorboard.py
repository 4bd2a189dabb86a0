"""Event files, read back with TensorBoard's own reader and from a running TensorBoard."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kda.monitor import cli
from monitor_run import (
    FakeRun,
    Points,
    clean_environment,
    only_checked,
    read_tensorboard,
    start_monitor,
)

pytest.importorskip("tensorboard", reason="the optional package tensorboard is not installed")


@pytest.fixture
def run(tmp_path: Path) -> FakeRun:
    return FakeRun(tmp_path / "run")


def in_f32(points: Points) -> Points:
    return {key: struct.unpack("f", struct.pack("f", value))[0] for key, value in points.items()}


def exported(run: FakeRun) -> Points:
    return only_checked(read_tensorboard(run.folder / "monitor" / "tensorboard"))


def export(run: FakeRun) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert cli.main(["tensorboard", str(run.folder)]) == 0
    return said.getvalue()


def event_file(run: FakeRun) -> Path:
    files = (run.folder / "monitor" / "tensorboard").iterdir()
    (path,) = (path for path in files if path.stat().st_size > 0)
    return path


def test_every_point_once_and_again(run: FakeRun) -> None:
    run.steps(1, 25)
    export(run)
    assert exported(run) == in_f32(run.points())
    first = event_file(run).read_bytes()
    export(run)
    assert event_file(run).read_bytes() == first
    run.steps(26, 40)
    export(run)
    assert exported(run) == in_f32(run.points())
    assert event_file(run).read_bytes().startswith(first)


def test_bytes_behind_the_position_are_cut_off(run: FakeRun) -> None:
    """What a killed exporter leaves: whole events, half an event, that the position knows not."""
    run.steps(1, 10)
    export(run)
    first = event_file(run).read_bytes()
    run.steps(11, 20)
    export(run)
    second = event_file(run).read_bytes()
    place = run.folder / "monitor" / "tensorboard.position.json"
    later = place.read_text()
    for length in (len(first) + 1, len(first) + 100, len(second) - 1, len(second)):
        record = json.loads(later)
        old = json.loads(later)
        record["sink"]["bytes"] = len(first)
        size = sum(map(len, run.log.read_bytes().splitlines(keepends=True)[:11]))
        record.update(
            bytes=size, lines=11, sha256=hashlib.sha256(run.log.read_bytes()[:size]).hexdigest()
        )
        place.write_text(json.dumps(record))
        event_file(run).write_bytes(second[:length])
        export(run)
        assert event_file(run).read_bytes() == second
        assert json.loads(place.read_text()) == old


def test_an_event_file_that_lost_bytes_is_made_anew(run: FakeRun) -> None:
    """After a power cut the position may know of more than the disk has."""
    run.steps(1, 10)
    export(run)
    path = event_file(run)
    path.write_bytes(path.read_bytes()[:-7])
    export(run)
    assert exported(run) == in_f32(run.points())
    path.unlink()
    export(run)
    assert exported(run) == in_f32(run.points())


def test_training_goes_back(run: FakeRun) -> None:
    run.steps(1, 37)
    export(run)
    run.resume(20)
    run.steps(21, 30)
    assert "training went back" in export(run)
    assert exported(run) == in_f32(run.points())
    assert max(step for _, step in exported(run)) == 30


def test_non_finite_values_and_texts(run: FakeRun) -> None:
    values = {"loss": "nan", "lr": "inf", "tok_per_s": "-inf"}
    run.put({"kind": "step", "step": 1, **values, "step_ms": "nan"})
    run.put_text('{"kind":"sample","step":1,"prompt":"<b>","text":"\\u0000\\ud800 a\\n# b"}\n')
    export(run)
    points = {name: value for name, step, value in read_tensorboard(event_file(run).parent)}
    assert math.isnan(points["train/loss"])
    assert points["train/lr"] == math.inf
    assert points["speed/tok_per_s"] == -math.inf


def _is_killed_often(run: FakeRun, kills: int) -> int:
    """Kills a following exporter at random moments while the log grows and training goes back;
    returns how often the event file was ahead of the position."""
    draw = random.Random(7)
    step, ahead = 1500, 0
    run.steps(1, step)
    place = run.folder / "monitor" / "tensorboard.position.json"
    for number in range(kills):
        before = place.read_bytes() if place.exists() else b""
        run.steps(step + 1, step + 5)
        step += 5
        process = start_monitor("tensorboard", run.folder, "--follow", "--interval", "0.05")
        # Loading the library takes longest: most kills must fall into the work after it.
        deadline = time.monotonic() + 60
        while number % 3 != 2 and time.monotonic() < deadline:
            if place.exists() and place.read_bytes() != before:
                break
            time.sleep(0.01)
        for _ in range(draw.randrange(1, 12)):
            run.steps(step + 1, step + 40)
            step += 40
            time.sleep(draw.uniform(0, 0.06))
        process.send_signal(signal.SIGKILL)
        process.wait()
        known = json.loads(place.read_text())["sink"]
        path = run.folder / "monitor" / "tensorboard" / known["file"]
        ahead += path.stat().st_size > known["bytes"]
        if number % 7 == 6:
            step -= 30
            run.resume(step)
    return ahead


@pytest.mark.slow
def test_killed_twenty_times(run: FakeRun) -> None:
    _is_killed_often(run, 20)
    export(run)
    assert exported(run) == in_f32(run.points())


def test_killed_thrice(run: FakeRun) -> None:
    _is_killed_often(run, 3)
    export(run)
    assert exported(run) == in_f32(run.points())


def test_follow_ends_with_the_run_and_by_signal(run: FakeRun) -> None:
    run.configure(total_steps=30)
    process = start_monitor("tensorboard", run.folder, "--follow", "--interval", "0.05")
    run.steps(1, 30)
    run.save(30)
    assert process.wait(60) == 0
    assert exported(run) == in_f32(run.points())
    run.configure(total_steps=60)
    process = start_monitor("tensorboard", run.folder, "--follow", "--interval", "0.05")
    run.steps(31, 40)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and exported(run) != in_f32(run.points()):
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert exported(run) == in_f32(run.points())


@contextlib.contextmanager
def tensorboard(logdir: Path, *words: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host"]
    command += ["127.0.0.1", "--port", str(port), "--reload_interval", "1", *words]
    process = subprocess.Popen(
        command,
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}/data/plugin"
    finally:
        process.terminate()
        process.wait()


def fetch(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())
    except OSError:
        return None  # not up yet, or the tag is not read yet


def wait_for(url: str, wanted: list[tuple[int, float]]) -> None:
    deadline = time.monotonic() + 90
    found = None
    while time.monotonic() < deadline:
        found = [(step, value) for _, step, value in fetch(url) or []]
        if found == wanted:
            return
        time.sleep(0.3)
    assert found == wanted


@pytest.mark.slow
@pytest.mark.parametrize("fast", ["true", "false"])
def test_a_running_tensorboard_follows_a_run_that_goes_back(run: FakeRun, fast: str) -> None:
    def losses() -> list[tuple[int, float]]:
        points = in_f32(run.points())
        return [(step, value) for (name, step), value in points.items() if name == "train/loss"]

    run.steps(1, 30)
    export(run)
    words = ["--load_fast", fast, "--samples_per_plugin", "scalars=10000"]
    name = "run%2Fmonitor%2Ftensorboard"
    with tensorboard(run.folder.parent, *words) as url:
        curve = f"{url}/scalars/scalars?run={name}&tag=train%2Floss"
        wait_for(curve, losses())
        run.steps(31, 45)
        export(run)
        wait_for(curve, losses())
        run.resume(20)
        run.steps(21, 35)
        export(run)
        wait_for(curve, losses())
        tags = fetch(f"{url}/scalars/tags")[name.replace("%2F", "/")]
        assert {"train/loss", "train/lr", "heldout/ce", "speed/tok_per_s"} <= set(tags)
        assert "config" in fetch(f"{url}/text/tags")[name.replace("%2F", "/")]


def test_a_moved_run_goes_on(run: FakeRun) -> None:
    run.steps(1, 10)
    export(run)
    moved = FakeRun(run.folder.parent / "moved")
    shutil.rmtree(moved.folder)
    run.folder.rename(moved.folder)
    moved.steps(11, 20)
    assert "went back" not in export(moved)
    assert exported(moved) == in_f32(moved.points())
