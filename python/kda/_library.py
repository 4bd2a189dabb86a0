"""Finds and loads the native library, once per process."""

from __future__ import annotations

import os
from pathlib import Path

from kda._version import __version__

_NAME = "libkda_torch.so"
_CUDA_NAME = "libkda_torch_cuda.so"
_PACKAGE = Path(__file__).resolve().parent
_loaded: Path | None = None


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


def _load_file(path: Path) -> None:
    import torch

    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(
            f"kda: {path} could not be loaded by torch {torch.__version__}: {error}. It must be "
            "built with the torch that runs it (`make build`)."
        ) from error


def load() -> Path:
    """Loads the library and, where a GPU is usable, the CUDA library beside it.

    Returns:
        The path of the loaded library.

    Raises:
        ImportError: torch or the library is missing, does not load, or is of another version.
    """
    global _loaded
    if _loaded is not None:
        return _loaded
    try:
        import torch
    except ImportError as error:
        raise ImportError("kda: the operator needs torch (`make setup` installs it)") from error

    path = find()
    _load_file(path)
    version = torch.ops.kda.version()
    if version != __version__:
        raise ImportError(
            f"kda: {path} has version {version}, the Python package {__version__}: "
            "run `make build` again"
        )
    cuda = path.with_name(_CUDA_NAME)
    if cuda.is_file() and torch.cuda.is_available():
        _load_file(cuda)
    _loaded = path
    return path
