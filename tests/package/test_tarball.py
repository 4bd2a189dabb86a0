"""The tarball of the program: unpacked elsewhere, run by another user, with nothing set."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["KDA_BUILD"])
PACK = ROOT / "scripts/package_tarball.py"
NOBODY = 65534


def cache_entry(name: str) -> str:
    found = re.search(rf"^{name}:\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.MULTILINE)
    return found.group(1) if found else ""


if cache_entry("KDA_SANITIZE") or cache_entry("KDA_COVERAGE") == "ON":
    pytest.skip("an instrumented build is not shipped", allow_module_level=True)
CUDA = cache_entry("KDA_CUDA") == "ON"


def unpacked(tmp_path_factory: pytest.TempPathFactory, torch: str) -> Path:
    """A tarball made, moved and unpacked in a folder that anyone can read."""
    made = tmp_path_factory.mktemp("made")
    done = subprocess.run(
        [sys.executable, PACK, BUILD, "--out", made, "--compress", "none", "--torch", torch],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (archive,) = made.iterdir()  # nothing else is left there
    target = tmp_path_factory.mktemp("else where")
    with tarfile.open(archive) as tar:
        for entry in tar:
            assert (entry.uid, entry.gid) == (0, 0)
            assert not entry.name.startswith("/") and ".." not in entry.name
        tar.extractall(target)
    archive.unlink()
    for folder in (target, *target.parents):
        if folder.stat().st_mode & 0o005 != 0o005 and folder.owner() == Path.home().owner():
            folder.chmod(folder.stat().st_mode | 0o755)
    (folder,) = target.iterdir()
    return folder


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if CUDA:
        pytest.skip("a CUDA build takes torch from an installation")
    folder = unpacked(tmp_path_factory, "bundled")
    yield folder
    shutil.rmtree(folder)  # 450 MB


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory, "linked")


def run(folder: Path, *words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """As nobody where this test is root, with an empty environment."""
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
    return subprocess.run(
        [folder / "bin/kda", *words],
        capture_output=True, text=True, check=False, cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), "OMP_NUM_THREADS": "1"}, **user,
    )  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder of the other user."""
    folder = tmp_path / "home"
    folder.mkdir()
    for parent in tmp_path.parents[:2]:
        parent.chmod(parent.stat().st_mode | 0o755)
    tmp_path.chmod(0o755)
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    return folder


def test_runs_elsewhere_for_another_user(bundled: Path, home: Path) -> None:
    shown = run(bundled, "--version", cwd=home)
    assert shown.returncode == 0, shown.stderr
    note = json.loads((bundled / "lib/kda_build.json").read_text())
    assert f"kda {note['version']} (commit " in shown.stdout
    assert re.search(rf"torch {re.escape(note['torch'])}\S* \(CUDA [\d.]+\)", shown.stdout)
    doctor = run(bundled, "doctor", cwd=home)
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert "all well" in doctor.stdout


def test_loads_nothing_else_of_the_machine(bundled: Path) -> None:
    """Everything comes from the tarball, but for the libraries of glibc and g++."""
    system = re.compile(r"(lib(c|m|dl|rt|util|pthread|stdc\+\+|gcc_s)|ld-linux.*)\.so")
    for file in (bundled / "bin/kda", bundled / "lib/libkda_torch.so"):
        shown = subprocess.run(["ldd", file], capture_output=True, text=True, check=True)
        for name, path in re.findall(r"^\s*(\S+) => (.+?)(?: \(0x|$)", shown.stdout, re.M):
            inside = Path(path).resolve().is_relative_to(bundled.resolve())
            assert inside or system.match(name), (file, name, path)


def test_trains_and_generates(bundled: Path, home: Path) -> None:
    text = bundled / "share/kda/python/kda/corpus/tiny/en.txt"
    model, out = home / "spm.model", home / "run"
    for words in (
        ["tokenizer", "train", "--data", text, "--vocab-size", "400", "--out", model],
        ["train", "--preset", "tiny", "--data", text, "--tokenizer", model, "--steps", "2",
         "--cache", home / "cache", "--batch", "1", "--seq-len", "64", "--eval-every", "off",
         "--sample-every", "off",
         "--out", out],
        ["generate", "--ckpt", out, "--prompt", "The file", "--max-new-tokens", "4", "--seed", "1",
         "--ignore-eos"],
    ):  # fmt: skip
        done = run(bundled, *words, cwd=home)
        assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The file")
    assert len(done.stdout) > len("The file")


def test_no_path_of_the_build_machine(linked: Path) -> None:
    note = re.compile(r"\((?:RUNPATH|RPATH)\)\s+Library r(?:un)?path: \[(.*)\]")
    programs = [linked / "bin/kda", *(linked / "lib").glob("libkda_*.so")]
    assert len(programs) >= 2
    for path in programs:
        shown = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True)
        found = note.search(shown.stdout)
        assert found is not None, path
        assert all(part.startswith("$ORIGIN") for part in found.group(1).split(":")), found
    files = {str(p.relative_to(linked)) for p in linked.rglob("*") if not p.is_dir()}
    assert not [name for name in files if name.endswith(".pyc") or "__pycache__" in name]
    for name in (
        "bin/kda-use-torch", "lib/libhwy.so.1", "share/man/man1/kda.1",
        "share/bash-completion/completions/kda", "share/zsh/site-functions/_kda",
        "share/fish/vendor_completions.d/kda.fish", "share/doc/kda/LICENSE",
        "share/kda/python/kda/corpus/frozen/test.ids",
    ):  # fmt: skip
        assert name in files


def test_documented_glibc_is_enough(linked: Path) -> None:
    text = (ROOT / "docs/install.md").read_text()
    found = re.search(r"glibc ([\d.]+) or newer", text)
    assert found is not None
    limit = tuple(map(int, found.group(1).split(".")))
    for path in (linked / "bin/kda", *(linked / "lib").glob("*.so*")):
        shown = subprocess.run(["objdump", "-T", path], capture_output=True, text=True, check=True)
        needed = {
            tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", shown.stdout)
        }
        assert max(needed) <= limit, path


def test_takes_the_torch_of_an_installation(linked: Path, home: Path) -> None:
    before = run(linked, "--version", cwd=home)
    assert before.returncode == 127
    assert "libtorch_cpu.so" in before.stderr or "libc10.so" in before.stderr
    use = linked / "bin/kda-use-torch"
    python = cache_entry("KDA_PYTHON")
    done = subprocess.run([use, python], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = subprocess.run(
        [linked / "bin/kda", "--version"], capture_output=True, text=True, check=False, env={}
    )
    assert shown.returncode == 0, shown.stderr
    (linked / "lib/torch").unlink()


def test_refuses_another_torch(linked: Path, tmp_path: Path) -> None:
    """A Python with a package that calls itself torch 2.9.1, and one with none."""
    use = linked / "bin/kda-use-torch"
    python = tmp_path / "python"

    def ask(site: Path) -> str:
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
        python.chmod(0o755)
        done = subprocess.run(
            [use, python], capture_output=True, text=True, check=False,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(site)},
        )  # fmt: skip
        assert done.returncode == 1
        assert not (linked / "lib/torch").exists()
        return done.stderr

    assert "has no torch; install torch" in ask(tmp_path)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("")
    (tmp_path / "torch-2.9.1.dist-info").mkdir()
    (tmp_path / "torch-2.9.1.dist-info/METADATA").write_text("Name: torch\nVersion: 2.9.1\n")
    assert "has 2.9.1" in ask(tmp_path)
