"""The reference builds without a warning (`make docs`)."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
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


def words_of_the_program() -> dict[str, tuple[set[str], set[str]]]:
    """Of every verb ("/data/build"): the verbs below it and its options."""
    script = subprocess.run(
        [os.environ["KDA_PROGRAM"], "completion", "bash"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    rows = re.findall(
        r"^    '([^']*)'\) verbs='([^']*)' options='([^']*)' ;;", script, re.MULTILINE
    )
    return {path: (set(verbs.split()), set(options.split())) for path, verbs, options in rows}


def commands_of(document: Path) -> list[list[str]]:
    """The lines of a document that begin with the program, and what stands between backquotes."""
    text = document.read_text().replace("\\\n", " ")
    program = r"(?:\$kda|kda|build/release/bin/kda) ([a-z-][^`\n|>;]*)"
    found = re.findall(rf"^(?:# *|\$ )?{program}|`{program}`", text, re.MULTILINE)
    return [shlex.split(here or quoted, comments=True) for here, quoted in found]


def test_commands_of_the_documents_are_those_of_the_program() -> None:
    known = words_of_the_program()
    checked = 0
    for document in (
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("configs/**/*"),
    ):
        if document.suffix not in (".md", ".toml"):
            continue
        for words in commands_of(document):
            if words[0].endswith(":"):
                continue  # an error that is quoted
            path = ""
            while words and words[0] in known[path][0]:
                path += f"/{words.pop(0)}"
            where = (document.name, path, words)
            assert path or words[0].startswith("--"), where
            given = {word.split("=")[0].rstrip(",") for word in words if re.match("--[a-z]", word)}
            assert given <= known[path][1] | {"--help", "--version"}, where
            checked += 1
    assert checked > 100
