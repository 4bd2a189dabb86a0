"""A torch that cannot be linked with is one sentence of CMake, not pages of undefined names."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "cmake" / "TorchWheel.cmake"

pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake")


def _configure(python: Path) -> str:
    """What CMake says about this Python; it must fail."""
    result = subprocess.run(
        ["cmake", f"-DKDA_PYTHON={python}", "-P", str(SCRIPT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    return " ".join(result.stderr.split())


def _python_that(tmp_path: Path, script: str) -> Path:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_torch_of_another_version_is_named(tmp_path: Path) -> None:
    # Debian's libtorch 1.13 has another C++ ABI; any other version has other symbols.
    for version in ("1.13.1", "2.10.0+cu128"):
        message = _configure(_python_that(tmp_path, f"echo '/opt/torch;{version}'"))
        assert "torch 2.11.0 expected" in message
        assert f"found {version} in /opt/torch" in message
        assert "make setup" in message


def test_python_without_torch_says_what_to_run(tmp_path: Path) -> None:
    message = _configure(_python_that(tmp_path, "echo 'torch is not installed' >&2; exit 1"))
    assert "has no usable torch (torch is not installed" in message
    assert "make setup" in message


def test_missing_python_says_what_to_set(tmp_path: Path) -> None:
    message = _configure(tmp_path / "nowhere" / "python")
    assert "no Python at" in message
    assert "KDA_TORCH=OFF" in message
