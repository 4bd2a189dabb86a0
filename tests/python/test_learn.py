"""docs/learn: every command is run, and prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEARN = ROOT / "docs" / "learn"
PAGES = sorted(LEARN.glob("L*.md"))
#: a block of commands and, where it follows, what they print
BLOCKS = re.compile(r"^```sh\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def find_program() -> Path | None:
    given = os.environ.get("KDA_EXECUTABLE")
    if given:
        return Path(given)
    built = sorted(ROOT.glob("build/*/bin/kda"), key=lambda path: path.stat().st_mtime)
    return built[-1] if built else None


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Path]:
    """A folder in which the pages' paths work and data/ and runs/ are its own."""
    for name in ("docs", "python", ".venv"):
        (tmp_path / name).symlink_to(ROOT / name)
    program = find_program()
    if program is not None:
        (tmp_path / "build/release/bin").mkdir(parents=True)
        (tmp_path / "build/release/bin/kda").symlink_to(program)
    yield tmp_path


def missing_line(expected: str, printed: str) -> str | None:
    """The first line that does not follow the ones before it in what was printed."""
    lines = iter(printed.splitlines())
    for line in expected.splitlines():
        pattern = ".*".join(re.escape(part.strip()) for part in line.split("…"))
        if not any(re.fullmatch(rf"\s*{pattern}\s*", given) for given in lines):
            return line
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_print_what_the_page_says(page: Path, workplace: Path) -> None:
    blocks = BLOCKS.findall(page.read_text(encoding="utf-8"))
    assert blocks
    if any("bin/kda" in commands for commands, _ in blocks) and find_program() is None:
        pytest.skip("no program: run `make program` or set KDA_EXECUTABLE")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    for commands, expected in blocks:
        done = subprocess.run(
            ["bash", "-euc", commands],
            cwd=workplace,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        line = missing_line(expected, done.stdout)
        assert line is None, f"expected {line!r} in\n{done.stdout}"


def test_a_line_that_is_not_printed_is_found() -> None:
    assert missing_line("a\nc…", "a\nb\ncd\n") is None
    assert missing_line("b\na\n", "a\nb\n") == "a"
    assert missing_line("a…", "b a\n") == "a…"


def test_steps_and_files_are_there() -> None:
    assert [page.name[:2] for page in PAGES] == ["L1", "L2", "L3", "L4", "L5", "L6", "L7"]
    index = (LEARN / "README.md").read_text(encoding="utf-8")
    for page in [*PAGES, LEARN / "README.md"]:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert (page.parent / target).exists(), (page.name, target)
        for name in re.findall(r"`((?:src|docs)/[^` ]+)`", text):
            assert (ROOT / name).exists(), (page.name, name)
        assert page.name == "README.md" or f"({page.name})" in index
