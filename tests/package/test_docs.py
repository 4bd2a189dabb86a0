"""The reference builds without a warning (`make docs`)."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["KDA_BUILD"])


def test_every_public_name_of_the_headers_is_documented(tmp_path: Path) -> None:
    if shutil.which("doxygen") is None:
        pytest.skip("no doxygen on this machine")
    settings = (ROOT / "docs/api/Doxyfile").read_text() + f"\nOUTPUT_DIRECTORY = {tmp_path}\n"
    done = subprocess.run(
        ["doxygen", "-"], input=settings, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
    pages = {path.name for path in (tmp_path / "cpp").iterdir()}
    for header in (ROOT / "include/kda").rglob("*.h"):
        page = header.stem.replace("_", "__") + "_8h.html"
        assert page in pages, header
    text = (tmp_path / "cpp/structkda_1_1ChunkForwardParams.html").read_text()
    assert "[B,T,HV,V]" in text  # the shapes, not only the names


def test_python_reference(tmp_path: Path) -> None:
    if importlib.util.find_spec("pdoc") is None:
        pytest.skip("no pdoc here (scripts/requirements-docs.txt)")
    script = (ROOT / "scripts/docs.sh").read_text()
    found = re.search(r"-m pdoc -o build/docs/python \\\n\s+(.*)$", script, re.MULTILINE)
    assert found is not None
    modules = found.group(1).replace("'", "").split()
    environment = {"PYTHONPATH": str(ROOT / "python"), "KDA_LIBRARY": str(BUILD / "lib")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pdoc", "-o", tmp_path, *modules],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    import kda

    page = (tmp_path / "kda.html").read_text()
    for name in kda.__all__:
        assert f'id="{name}"' in page, name
