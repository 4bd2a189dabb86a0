"""The committed training configurations are read by the program as they stand."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*/*.toml"))


def program() -> Path:
    """KDA_EXECUTABLE, or the newest build/*/bin/kda."""
    if chosen := os.environ.get("KDA_EXECUTABLE"):
        return Path(chosen)
    built = sorted(ROOT.glob("build/*/bin/kda"), key=lambda path: path.stat().st_mtime)
    if not built:
        pytest.skip("no program: set KDA_EXECUTABLE or build one")
    return built[-1]


def test_there_are_configurations() -> None:
    assert CONFIGS


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_program_reads_and_repeats_it(path: Path) -> None:
    given = tomllib.loads(path.read_text())
    (verb,) = given
    command = [str(program()), verb, "--config", str(path), "--dump-config"]
    if verb == "sft":  # its tokenizer comes with the checkpoint, which a test has not got
        command += ["--tokenizer", "spm.model"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    dumped = tomllib.loads(result.stdout)[verb]
    for key, value in given[verb].items():
        assert dumped[key] == value, key
