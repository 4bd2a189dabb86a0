#!/usr/bin/env python3
"""Puts the program as it is shipped into a folder: bin, lib, share.

scripts/package_program.py build/release DIR

The program, its libraries, the Python parts, completions for three shells, the manual page, and the
libraries of this machine that another one may lack. torch is not among them (package_tarball.py).
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: glibc and g++'s own libraries: older than the build's is too old, and two in a process are one
#: too many
OF_THE_SYSTEM = re.compile(
    r"(libc|libm|libdl|librt|libutil|libpthread|libstdc\+\+|libgcc_s|ld-linux.*|linux-vdso)\.so"
)
DT_RPATH, DT_RUNPATH, PT_DYNAMIC = 15, 29, 2


def fail(text: str) -> SystemExit:
    return SystemExit(f"package: error: {text}")


def run_path_for_all(program: Path) -> None:
    """Turns RUNPATH, which serves only what a file itself names, into RPATH, which also serves what
    that needs in turn: the carried libraries find each other by it."""
    data = bytearray(program.read_bytes())
    table, entry_size, count = (
        struct.unpack_from("<Q", data, 32)[0],
        *struct.unpack_from("<HH", data, 54),
    )
    for i in range(count):
        kind, _, start, _, _, size = struct.unpack_from("<IIQQQQ", data, table + i * entry_size)
        if kind != PT_DYNAMIC:
            continue
        for at in range(start, start + size, 16):
            if struct.unpack_from("<Q", data, at)[0] == DT_RUNPATH:
                struct.pack_into("<Q", data, at, DT_RPATH)
                program.write_bytes(data)
                return
    raise fail(f"{program}: expected a run path, found none")


def needed(files: list[Path]) -> dict[str, Path]:
    """Libraries of this machine that these files load, by the name they ask for."""
    out: dict[str, Path] = {}
    for file in files:
        done = subprocess.run(["ldd", file], capture_output=True, text=True, check=True)
        for name, path in re.findall(r"^\s*(\S+) => (.+?)(?: \(0x|$)", done.stdout, re.MULTILINE):
            if path == "not found":
                raise fail(f"{file} needs {name}, which this machine does not have")
            foreign = re.search("/torch/lib/|/nvidia/|/cuda", path)
            if not foreign and not OF_THE_SYSTEM.match(name) and not name.startswith("libkda_"):
                out[name] = Path(path).resolve()
    return out


def carry(name: str, source: Path, folder: Path) -> None:
    """A library with the terms under which its package gives it."""
    shutil.copy(source, folder / "lib" / name)
    done = subprocess.run(
        ["dpkg", "-S", f"*/{source.name}"], capture_output=True, text=True, check=False
    )
    terms = Path("/usr/share/doc") / done.stdout.partition(":")[0] / "copyright"
    if done.returncode == 0 and terms.is_file():
        shutil.copy(terms, folder / "share/doc/kda" / f"{name}.copyright")


def output(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise fail(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def fill(build: Path, folder: Path) -> None:
    install = ["cmake", "--install", build, "--component", "program", "--prefix", folder, "--strip"]
    output(*install)
    documents = folder / "share/doc/kda"
    documents.mkdir(parents=True, exist_ok=True)
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "docs/install.md"):
        shutil.copy(ROOT / name, documents)
    kda = folder / "bin/kda"
    for name, source in needed([kda, *(folder / "lib").glob("libkda_*.so")]).items():
        carry(name, source, folder)
    for shell, place in (
        ("bash", "share/bash-completion/completions/kda"),
        ("zsh", "share/zsh/site-functions/_kda"),
        ("fish", "share/fish/vendor_completions.d/kda.fish"),
    ):
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(output(kda, "completion", shell))
    page = folder / "share/man/man1/kda.1"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(output(sys.executable, ROOT / "scripts/make_man.py", kda))
    run_path_for_all(kda)


def main() -> None:
    if len(sys.argv) != 3 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__.strip())
    os.umask(0o022)
    fill(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())


if __name__ == "__main__":
    main()
