#!/usr/bin/env python3
"""Packs the program `kda` of a build into a tarball that runs from any folder, for any user.

scripts/package_tarball.py build/release --out dist

The default holds the five libraries of torch that a run on the CPU loads, so nothing else has to be
installed. With --torch linked (always so for a CUDA build, whose libraries are 3.6 GB) it holds
none; `bin/kda-use-torch PYTHON` in the unpacked folder then points it at an installed torch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import package_program
from package_program import fail

#: what the loader needs of torch's wheel for a program that links torch_cpu and c10
TORCH_LIBRARIES = ("libtorch_cpu.so", "libc10.so", "libgomp.so.1")
NVIDIA_LIBRARIES = ("libcudart.so.13", "libcupti.so.13")
RUN_PATHS = {"bin": "$ORIGIN/../lib:$ORIGIN/../lib/torch", "lib": "$ORIGIN:$ORIGIN/torch"}
USE_TORCH = """#!/bin/sh
# Points this copy of kda at the torch of a Python: kda-use-torch [PYTHON]
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
"${1:-python3}" - "$here" <<'PY'
import importlib.metadata, importlib.util, json, os, pathlib, sys
here = pathlib.Path(sys.argv[1])
wanted = json.loads((here / "lib/kda_build.json").read_text())["torch"].partition("+")[0]
spec = importlib.util.find_spec("torch")
if spec is None:
    sys.exit(f"kda-use-torch: error: {sys.executable} has no torch; install torch {wanted} there")
found = importlib.metadata.version("torch").partition("+")[0]
if found != wanted:
    sys.exit(f"kda-use-torch: error: kda was built for torch {wanted}, {sys.executable} has {found}")
link = here / "lib/torch"
if link.is_dir() and not link.is_symlink():
    sys.exit("kda-use-torch: error: this copy of kda brings its own torch")
link.unlink(missing_ok=True)
link.symlink_to(pathlib.Path(spec.submodule_search_locations[0]) / "lib")
print(f"{link} -> {os.readlink(link)}")
PY
"""


def cache_entry(build: Path, name: str) -> str:
    """A value of the build's CMake cache; "" for none."""
    text = (build / "CMakeCache.txt").read_text()
    found = re.search(rf"^{name}:\w+=(.*)$", text, re.MULTILINE)
    return found.group(1) if found else ""


def set_run_path(library: Path, run_path: str) -> None:
    """Overwrites the folders that the build wrote into the dynamic section."""
    data = library.read_bytes()
    found = re.findall(rb"\$ORIGIN:[^\0]*", data)
    if len(found) != 1:
        raise fail(f"{library}: expected one run path that begins with $ORIGIN, found {len(found)}")
    new = run_path.encode()
    if len(found[0]) < len(new):
        raise fail(f"{library}: no room for the run path {run_path} in {found[0].decode()}")
    library.write_bytes(data.replace(found[0], new.ljust(len(found[0]), b"\0")))


def torch_folder(build: Path) -> Path:
    python = cache_entry(build, "KDA_PYTHON")
    code = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise fail(f"{python} has no torch: {done.stderr.strip()}")
    return Path(done.stdout.strip())


def is_licence(path: Path) -> bool:
    return path.is_file() and path.stem.upper() in ("LICENSE", "NOTICE", "COPYING")


def bundle_torch(build: Path, target: Path) -> None:
    torch = torch_folder(build)
    nvidia = torch.parent / "nvidia" / "cu13" / "lib"
    target.mkdir()
    for folder, names in ((torch / "lib", TORCH_LIBRARIES), (nvidia, NVIDIA_LIBRARIES)):
        for name in names:
            if not (folder / name).is_file():
                raise fail(f"torch's wheel has no {name} in {folder}")
            shutil.copy2(folder / name, target / name)
    for package in ("torch", "nvidia_cuda_runtime", "nvidia_cuda_cupti"):
        terms = [p for p in torch.parent.glob(f"{package}-*.dist-info/**/*") if is_licence(p)]
        if not terms:
            raise fail(f"no licence of {package} in {torch.parent}")
        for path in terms:
            shutil.copy2(path, target / f"{package}.{path.name}")


def fill(build: Path, folder: Path, torch: str) -> None:
    """The unpacked tarball in `folder`."""
    package_program.fill(build, folder)
    set_run_path(folder / "bin" / "kda", RUN_PATHS["bin"])
    for library in (folder / "lib").glob("libkda_*.so"):
        set_run_path(library, RUN_PATHS["lib"])
    use_torch = folder / "bin" / "kda-use-torch"
    use_torch.write_text(USE_TORCH)
    use_torch.chmod(0o755)
    if torch == "bundled":
        bundle_torch(build, folder / "lib" / "torch")


def normalised(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nobody's files, readable by everybody."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode |= 0o444 | (0o111 if entry.isdir() or entry.mode & 0o100 else 0)
    entry.mode &= 0o755
    entry.mtime = int(os.environ.get("SOURCE_DATE_EPOCH", entry.mtime))
    return entry


def pack(folder: Path, archive: Path, compress: str) -> None:
    part = archive.with_name(archive.name + ".part")
    mode = {"xz": "w:xz", "gz": "w:gz", "none": "w"}[compress]
    options = {"preset": 6} if compress == "xz" else {}
    with tarfile.open(part, mode, **options) as tar:
        tar.add(folder, arcname=folder.name, filter=normalised)
    part.rename(archive)


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="build folder, e.g. build/release")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="where the tarball goes")
    parser.add_argument("--torch", choices=("bundled", "linked"), help="see the file's head")
    parser.add_argument("--compress", choices=("xz", "gz", "none"), default="xz")
    return parser.parse_args(words)


def main() -> None:
    options = parse_arguments()
    build = options.build.resolve()
    if not (build / "CMakeCache.txt").is_file():
        raise fail(f"{build}: expected a build folder (make build), found no CMakeCache.txt")
    cuda = cache_entry(build, "KDA_CUDA") == "ON"
    torch = options.torch or ("linked" if cuda else "bundled")
    if cuda and torch == "bundled":
        raise fail("--torch bundled: a CUDA build takes its torch from an installation")
    note = json.loads((build / "lib" / "kda_build.json").read_text())
    release = note["torch"].partition("+")[0]
    kind = f"{'cuda' if cuda else 'cpu'}{'' if torch == 'bundled' else f'-torch{release}'}"
    name = f"kda-{note['version']}-linux-{os.uname().machine}-{kind}"
    suffix = {"xz": ".tar.xz", "gz": ".tar.gz", "none": ".tar"}[options.compress]
    options.out.mkdir(parents=True, exist_ok=True)
    folder = options.out / name
    shutil.rmtree(folder, ignore_errors=True)
    try:
        fill(build, folder, torch)
        pack(folder, options.out / (name + suffix), options.compress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    size = (options.out / (name + suffix)).stat().st_size
    print(f"{options.out / (name + suffix)}: {size / 1e6:.0f} MB")


if __name__ == "__main__":
    sys.exit(main())
