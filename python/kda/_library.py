"""Finds, checks and loads the native library, once per process."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from kda._version import __version__

_NAME = "libkda_torch.so"
_CUDA_NAME = "libkda_torch_cuda.so"
_INFO_NAME = "kda_build.json"
_PACKAGE = Path(__file__).resolve().parent


@dataclasses.dataclass(frozen=True)
class BuildInfo:
    """What was loaded, and what it was built for."""

    #: version of the library
    version: str
    #: torch that it was built against, None when the build left no note
    torch: str | None
    #: GPU architectures of the CUDA library as CMake names them, empty without one
    cuda_archs: str
    #: the library
    library: Path
    #: the CUDA library, None when it was not loaded
    cuda_library: Path | None
    #: why the CUDA library was not loaded; empty when it was
    cuda_reason: str


_loaded: BuildInfo | None = None


def _build_tree_libraries() -> list[Path]:
    """Libraries of build folders inside the source tree, newest first."""
    root = _PACKAGE.parent.parent
    if not (root / "CMakeLists.txt").is_file():
        return []
    found = [*root.glob(f"build/lib/{_NAME}"), *root.glob(f"build/*/lib/{_NAME}")]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def find() -> Path:
    """The library to load: ``KDA_LIBRARY``, else the package's lib folder, else a build tree.

    Raises:
        ImportError: nothing found; the text names every place and how to build it.
    """
    named = os.environ.get("KDA_LIBRARY")
    if named:
        path = Path(named)
        if path.is_dir():
            path = path / _NAME
        if not path.is_file():
            raise ImportError(f"kda: KDA_LIBRARY names {named}, but there is no {path}")
        return path.resolve()
    packaged = _PACKAGE / "lib" / _NAME
    if packaged.is_file():
        return packaged
    built = _build_tree_libraries()
    if built:
        return built[0]
    raise ImportError(
        f"kda: the native library {_NAME} was not found. Looked in: the environment variable "
        f"KDA_LIBRARY (not set), {packaged}, {_PACKAGE.parent.parent}/build/*/lib/. "
        "Build it with `make build` in the source tree, or set KDA_LIBRARY to the file."
    )


def _build_note(library: Path) -> dict[str, Any]:
    """The note that the build left beside the library; empty when there is none."""
    path = library.with_name(_INFO_NAME)
    try:
        note = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ImportError(f"kda: {path} cannot be read: {error}") from error
    return note if isinstance(note, dict) else {}


def _release(version: str) -> str:
    """2.11.0 of 2.11.0+cu130: builds for several CUDA versions share one C++ interface."""
    return version.partition("+")[0]


def _check_torch(library: Path, built_for: str | None, running: str) -> None:
    """A library for another torch may load and then crash, so it is refused by its note."""
    if built_for is None or _release(built_for) == _release(running):
        return
    raise ImportError(
        f"kda: {library} was built for torch {built_for}, but this is torch {running}. Install "
        f"torch {_release(built_for)}, or build kda against this torch (docs/python.md)."
    )


def _load_file(path: Path) -> None:
    import torch

    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(
            f"kda: {path} could not be loaded by torch {torch.__version__}: {error}. It must be "
            "built with the torch that runs it (`make build`)."
        ) from error


def _load_cuda(path: Path) -> str:
    """Loads the CUDA library if it can be of use; else says why not."""
    import torch

    if not path.is_file():
        return f"this build has no {_CUDA_NAME} (configure with -DKDA_CUDA=ON)"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA"
    if not torch.cuda.is_available():
        return "no usable GPU (torch.cuda.is_available() is False)"
    _load_file(path)
    return ""


def load() -> Path:
    """Loads the library and, where a GPU is usable, the CUDA library beside it.

    Returns:
        The path of the loaded library.

    Raises:
        ImportError: torch or the library is missing, does not load, or is of another version.
    """
    return info().library


def info() -> BuildInfo:
    """Loads the library as :func:`load` does and says what was loaded."""
    global _loaded
    if _loaded is not None:
        return _loaded
    try:
        import torch
    except ImportError as error:
        raise ImportError("kda: the operator needs torch (`make setup` installs it)") from error

    path = find()
    note = _build_note(path)
    built_for = note.get("torch")
    _check_torch(path, built_for, torch.__version__)
    _load_file(path)
    version = torch.ops.kda.version()
    if version != __version__:
        raise ImportError(
            f"kda: {path} has version {version}, the Python package {__version__}: "
            "run `make build` again"
        )
    cuda = path.with_name(_CUDA_NAME)
    reason = _load_cuda(cuda)
    _loaded = BuildInfo(
        version=version,
        torch=built_for,
        cuda_archs=str(note.get("cuda_archs", "")),
        library=path,
        cuda_library=None if reason else cuda,
        cuda_reason=reason,
    )
    return _loaded
