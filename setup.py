"""Wheel of the Python package with the native op library inside (`pip wheel .`).

The libraries come from python/kda/lib, where `make build` leaves them; without them CMake builds
them first. The version's local part and the note beside the library say which torch they fit.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
LIBRARIES = ROOT / "python" / "kda" / "lib"
MAIN, CUDA, NOTE = "libkda_torch.so", "libkda_torch_cuda.so", "kda_build.json"
#: libraries of the build machine that travel inside the wheel: torch does not bring them
CARRIED = ("libhwy.so.1",)
#: where the loader looks in an installed wheel: beside the library, then in torch's wheel
RUNPATH = b"$ORIGIN:$ORIGIN/../../torch/lib"


def base_version() -> str:
    text = (ROOT / "python" / "kda" / "_version.py").read_text()
    found = re.search(r'__version__ = "([^"]+)"', text)
    if found is None:
        raise RuntimeError("python/kda/_version.py: no __version__ found")
    return found.group(1)


def pinned_torch() -> str:
    found = re.search(r'"torch==([^"]+)"', (ROOT / "pyproject.toml").read_text())
    if found is None:
        raise RuntimeError("pyproject.toml: no exact torch version among the dependencies")
    return found.group(1)


def wants_cuda() -> bool:
    if (LIBRARIES / MAIN).is_file():
        return (LIBRARIES / CUDA).is_file()
    return os.environ.get("KDA_CUDA", "OFF").upper() in ("ON", "1", "TRUE", "YES")


def python_with_torch() -> str:
    """The Python whose torch the library is compiled against."""
    if "KDA_PYTHON" in os.environ:
        return os.environ["KDA_PYTHON"]
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    venv = ROOT / ".venv" / "bin" / "python"
    if venv.is_file():
        return str(venv)
    raise RuntimeError(
        f"kda: building the library needs torch {pinned_torch()}: run `make build` first, or install "
        "that torch and use `pip wheel --no-build-isolation .`, or set KDA_PYTHON to a Python "
        "that has it"
    )


def build_library() -> None:
    build = ROOT / "build" / "wheel"
    cuda = "ON" if wants_cuda() else "OFF"
    subprocess.check_call(
        [
            "cmake", "-S", str(ROOT), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release",
            f"-DKDA_PYTHON={python_with_torch()}", f"-DKDA_CUDA={cuda}", "-DKDA_PYTHON_COPY=ON",
            "-DKDA_TESTS=OFF", "-DKDA_BENCH=OFF", "-DKDA_TEXT=OFF",
        ]
    )  # fmt: skip
    targets = ["kda_torch", *(["kda_torch_cuda"] if cuda == "ON" else [])]
    subprocess.check_call(["cmake", "--build", str(build), "--target", *targets, "--parallel", "2"])


def check_note() -> None:
    path = LIBRARIES / NOTE
    if not path.is_file():
        raise RuntimeError(f"kda: {path} is missing: run `make build` again")
    note = json.loads(path.read_text())
    expected = {"version": base_version(), "torch": pinned_torch()}
    given = {"version": note["version"], "torch": note["torch"].partition("+")[0]}
    if given != expected:
        raise RuntimeError(
            f"kda: {LIBRARIES / MAIN} was built as {given}, this wheel needs {expected}: "
            "run `make build` again"
        )


def set_runpath(library: Path) -> None:
    """Overwrites the folders of the build machine in the library's dynamic section."""
    data = library.read_bytes()
    found = re.search(rb"\$ORIGIN:[^\0]*", data)
    if found is None:
        return
    if len(found.group()) < len(RUNPATH):
        raise RuntimeError(f"kda: {library}: no room for the run path {RUNPATH.decode()}")
    library.write_bytes(
        data[: found.start()] + RUNPATH.ljust(len(found.group()), b"\0") + data[found.end() :]
    )


def needed_libraries(library: Path) -> dict[str, str]:
    """Name to path, as this machine's loader resolves them."""
    done = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=True)
    found = dict(re.findall(r"^\s*(\S+) => (/\S+|not found)", done.stdout, re.MULTILINE))
    for name in CARRIED:
        if found.get(name) == "not found":
            raise RuntimeError(f"kda: {library} needs {name}, which this machine does not have")
    return found


class BuildWithLibrary(build_py):
    """The Python files, the libraries, and what those need beyond torch."""

    def run(self) -> None:
        if not (LIBRARIES / MAIN).is_file():
            build_library()
        check_note()
        if self.editable_mode:  # the library stays where it is
            super().run()
            return
        package = Path(self.build_lib) / "kda"
        shutil.rmtree(package, ignore_errors=True)  # files of an earlier wheel would slip in
        super().run()
        target = package / "lib"
        carried = needed_libraries(LIBRARIES / MAIN)
        for name in CARRIED:
            if name in carried:
                shutil.copy2(Path(carried[name]).resolve(), target / name)
                terms = Path("/usr/share/doc") / name.replace(".so.", "") / "copyright"
                if terms.is_file():
                    shutil.copy2(terms, target / f"{name}.copyright")
        for library in (MAIN, CUDA):
            if (target / library).is_file():
                set_runpath(target / library)


class NativeWheel(bdist_wheel):
    """Tagged for the platform: the library needs no particular Python, but one machine type."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class NativeDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    version=f"{base_version()}+torch{pinned_torch()}.{'cuda' if wants_cuda() else 'cpu'}",
    distclass=NativeDistribution,
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": NativeWheel},
)
