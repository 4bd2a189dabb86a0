"""Threads, backends and the reasons for choosing one."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from kda import _library
from kda._library import BuildInfo

_library.load()


def set_num_threads(count: int) -> None:
    """Sets the thread count of the process: kda's, torch's intra-op pool and thereby MKL's.

    Like every OpenMP setting it counts for work started by the calling thread.

    Args:
        count: number of threads; 0 or less restores the default (``OMP_NUM_THREADS``, else the
            cores this process may use).

    Raises:
        ValueError: more than 4096.
    """
    torch.ops.kda.set_num_threads(int(count))


def num_threads() -> int:
    """The number of threads in effect."""
    return torch.ops.kda.num_threads()


def backends() -> list[str]:
    """Backends present in this process, in the order that ``backend="auto"`` tries them."""
    return list(torch.ops.kda.backends())


def build_info() -> BuildInfo:
    """The loaded libraries, the torch they were built for, and why CUDA is absent if it is."""
    return _library.info()


@dataclasses.dataclass(frozen=True)
class BackendVerdict:
    """One backend's answer to "can you serve this call?"."""

    backend: str
    #: linked into or loaded by this process
    available: bool
    #: empty when it can serve the call, else why not
    reason: str

    @property
    def can_serve(self) -> bool:
        return not self.reason


@dataclasses.dataclass(frozen=True)
class BackendChoice:
    """What ``backend="auto"`` chooses for a call, and why not the others."""

    #: name of the backend, None when no backend can serve the call
    chosen: str | None
    #: in the order in which they are tried
    verdicts: tuple[BackendVerdict, ...]

    def __str__(self) -> str:
        lines = [f"backend: {self.chosen or 'none can serve this call'}"]
        for verdict in self.verdicts:
            lines.append(f"  {verdict.backend}: {verdict.reason or 'can serve this call'}")
        return "\n".join(lines)


def _why_no_cuda(reason: str) -> str:
    found = _library.info().cuda_reason
    return f"not loaded: {found}" if found else reason


def explain(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    op: str = "chunk_fwd",
    **kwargs: Any,
) -> BackendChoice:
    """Which backend would serve a call, and why not the others. Computes nothing.

    Args:
        q, k, v, g, beta: as for :func:`kda.chunk_kda`.
        op: ``"chunk_fwd"``, ``"chunk_bwd"`` or ``"recurrent"``.
        **kwargs: the call's other arguments, with the names of :func:`kda.chunk_kda` (or of
            :func:`kda.fused_recurrent_kda` for ``"recurrent"``).

    Raises:
        ValueError: the call is invalid for every backend, or ``op`` is unknown.
        TypeError: unknown keyword.
    """
    from kda.ops._arguments import native_options

    for hint in ("disable_recompute", "return_intermediate_states", "use_graph", "max_num_seqs"):
        kwargs.pop(hint, None)
    options = native_options("explain", **kwargs)
    chosen, names, available, reasons = torch.ops.kda.explain(op, q, k, v, g, beta, **options)
    verdicts = tuple(
        BackendVerdict(name, present, why if present or name != "cuda" else _why_no_cuda(why))
        for name, present, why in zip(names, available, reasons, strict=True)
    )
    return BackendChoice(chosen or None, verdicts)
