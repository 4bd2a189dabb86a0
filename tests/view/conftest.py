"""The viewer as a process, and a browser, for the tests of this folder.

Run by CTest as `view_outside`, which names the program in KDA_VIEW_SERVE; by hand:
KDA_VIEW_SERVE=build/release/bin/view_serve .venv/bin/python -m pytest tests/view
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import demo_files

EXAMPLE_TRACE = Path(__file__).parents[1] / "inspect" / "data" / "example.trace.json"


class Server:
    """view_serve on a free port, ended when its input ends."""

    def __init__(self, files: list[Path]) -> None:
        program = os.environ.get("KDA_VIEW_SERVE")
        if not program or not Path(program).exists():
            pytest.skip("no viewer: set KDA_VIEW_SERVE to the program view_serve of a build")
        self.process = subprocess.Popen(
            [program, *map(str, files)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://127.0.0.1:"), self.process.communicate()[1]
        self.port = int(self.url.rstrip("/").rsplit(":", 1)[1])

    def running(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """Ends it and passes on what a sanitizer has to say."""
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("view")
    (folder / "run").mkdir()
    demo_files.metrics_file(folder / "run" / "metrics.jsonl")
    return [
        EXAMPLE_TRACE,
        demo_files.extract_file(folder / "tensors.safetensors"),
        demo_files.checkpoint_file(folder / "model.safetensors"),
        folder / "run",
    ]


@pytest.fixture(scope="session")
def server(files: list[Path]) -> Iterator[Server]:
    one = Server(files)
    yield one
    one.end()


@pytest.fixture
def young_run(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    """A server of its own for a log that is still empty."""
    log = tmp_path / "young.jsonl"
    log.touch()
    one = Server([log])
    yield one, log
    one.end()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium of the system, driven by Playwright."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="no browser driver: pip install playwright"
    )
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if chromium is None:
        pytest.skip("no browser: apt-get install chromium")
    with api.sync_playwright() as playwright:
        # The sandbox needs rights that containers do not give; WebGL in software.
        flags = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
        one = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield one
        one.close()
