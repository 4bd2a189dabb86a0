"""Where the tests may use a GPU. ``KDA_REQUIRE_CUDA=1`` turns their skips into failures."""

from __future__ import annotations

import os

import pytest

import kda

_reason = kda.build_info().cuda_reason
if _reason and os.environ.get("KDA_REQUIRE_CUDA"):
    raise RuntimeError(f"KDA_REQUIRE_CUDA is set, but there is no CUDA backend: {_reason}")

#: marks a test or a parameter that needs the CUDA backend
NEEDS_CUDA = pytest.mark.skipif(bool(_reason), reason=f"no CUDA backend: {_reason}")
#: the parameter values "cpu" and "cuda"
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)]


def device_of(backend: str) -> str:
    """Where a backend's tensors live."""
    return "cuda" if backend == "cuda" else "cpu"
