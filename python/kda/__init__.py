"""Kimi Delta Attention for PyTorch: a drop-in for ``fla.ops.kda`` on CPUs and NVIDIA GPUs.

    from kda import chunk_kda
    o, final_state = chunk_kda(q, k, v, g, beta)

The native library ``libkda_torch.so`` is loaded when one of its functions is first used, so that
``import kda.corpus`` needs neither the library nor torch. See docs/python.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kda._version import __version__

if TYPE_CHECKING:
    from kda.ops import (
        chunk_kda,
        fused_kda_gate,
        fused_recurrent_kda,
        fused_recurrent_kda_fwd,
        kda_gate_chunk_cumsum,
        naive_chunk_kda,
        naive_recurrent_kda,
    )
    from kda.runtime import (
        BackendChoice,
        BackendVerdict,
        BuildInfo,
        backends,
        build_info,
        explain,
        num_threads,
        set_num_threads,
    )

__all__ = [
    "BackendChoice",
    "BackendVerdict",
    "BuildInfo",
    "__version__",
    "backends",
    "build_info",
    "chunk_kda",
    "explain",
    "fused_kda_gate",
    "fused_recurrent_kda",
    "fused_recurrent_kda_fwd",
    "kda_gate_chunk_cumsum",
    "naive_chunk_kda",
    "naive_recurrent_kda",
    "num_threads",
    "set_num_threads",
]

_RUNTIME = {
    "BackendChoice",
    "BackendVerdict",
    "BuildInfo",
    "backends",
    "build_info",
    "explain",
    "num_threads",
    "set_num_threads",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kda' has no attribute {name!r}")
    module = importlib.import_module("kda.runtime" if name in _RUNTIME else "kda.ops")
    value = getattr(module, name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
