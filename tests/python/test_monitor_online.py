"""SwanLab online, with its own library, against a stand-in for the service on this machine."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor_run import FakeRun, monitor, need, only_checked, start_monitor
from swanlab_server import Service, swanlab_service

KEY = "k3y0f4service"


@pytest.fixture
def service() -> Iterator[Service]:
    need("swanlab")
    with swanlab_service() as running:
        yield running


@pytest.fixture
def run(tmp_path: Path) -> FakeRun:
    return FakeRun(tmp_path / "run")


def online(service: Service) -> dict[str, str]:
    return {"SWANLAB_API_KEY": KEY, "SWANLAB_API_HOST": service.url}


def export(run: FakeRun, service: Service) -> str:
    done = monitor("swanlab", run.folder, **online(service))
    assert done.returncode == 0, done.stderr
    assert KEY not in done.stdout + done.stderr
    return done.stdout + done.stderr


def test_online_again_and_back(run: FakeRun, service: Service) -> None:
    run.steps(1, 12)
    export(run, service)
    (first,) = service.runs
    assert only_checked(service.of(first)) == run.points()
    run.steps(13, 37)
    export(run, service)
    assert list(service.runs) == [first]
    assert only_checked(service.of(first)) == run.points()
    assert service.runs[first] == "FINISHED"
    run.resume(20)
    run.steps(21, 30)
    said = export(run, service)
    assert "training went back" in said
    (_, second) = service.runs
    assert f"under the new id {second}" in said.replace("\n", "")
    assert only_checked(service.of(second)) == run.points()
    files = [path for path in run.folder.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    assert [text for text in service.requests if KEY in text] == []


def test_an_offline_run_goes_online_later(run: FakeRun, service: Service) -> None:
    run.steps(1, 12)
    service.is_down = True
    assert "writing an offline run" in export(run, service)
    assert service.points == []
    service.is_down = False
    run.steps(13, 20)
    export(run, service)
    (only,) = service.runs
    assert only_checked(service.of(only)) == run.points()


def test_killed_while_online(run: FakeRun, service: Service) -> None:
    draw, step = random.Random(3), 60
    run.steps(1, step)
    for _ in range(3):
        before = len(service.points)
        run.steps(step + 1, step + 20)
        step += 20
        words = ("--follow", "--interval", "0.05")
        process = start_monitor("swanlab", run.folder, *words, **online(service))
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and len(service.points) == before:
            time.sleep(0.02)
        assert len(service.points) > before
        run.steps(step + 1, step + 20)
        step += 20
        time.sleep(draw.uniform(0, 1))
        process.send_signal(signal.SIGKILL)
        process.wait()
    export(run, service)
    (only,) = service.runs
    assert only_checked(service.of(only)) == run.points()


@pytest.mark.slow
def test_a_network_that_dies_on_the_way(run: FakeRun, service: Service) -> None:
    """The exporter ends with an error in bounded time; the next one sends what is missing."""
    run.configure(total_steps=90)
    run.steps(1, 40)
    words = ("--follow", "--interval", "0.05")
    process = start_monitor("swanlab", run.folder, *words, **online(service))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not service.points:
        time.sleep(0.05)
    assert service.points
    service.is_down = True
    run.steps(41, 90)
    run.save(90)
    assert process.wait(240) == 1
    service.is_down = False
    export(run, service)
    (only,) = service.runs
    assert only_checked(service.of(only)) == run.points()
