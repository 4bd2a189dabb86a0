"""The operator with the names, signatures and meanings of ``fla.ops.kda``."""

from kda import _library

_library.load()

from kda.ops.chunk import chunk_kda
from kda.ops.gate import fused_kda_gate, kda_gate_chunk_cumsum
from kda.ops.naive import naive_chunk_kda, naive_recurrent_kda
from kda.ops.recurrent import fused_recurrent_kda, fused_recurrent_kda_fwd

__all__ = [
    "chunk_kda",
    "fused_kda_gate",
    "fused_recurrent_kda",
    "fused_recurrent_kda_fwd",
    "kda_gate_chunk_cumsum",
    "naive_chunk_kda",
    "naive_recurrent_kda",
]
