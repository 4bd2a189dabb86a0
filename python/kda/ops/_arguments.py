"""From the keywords of ``fla.ops.kda`` to those of the native operators ``torch.ops.kda.*``."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable
from typing import Any

import torch

# Keywords of functions that are not this one's, but that people will try here.
_ELSEWHERE = {
    "ssm_state_indices": "fused_recurrent_kda_fwd",
    "num_accepted_tokens": "fused_recurrent_kda_fwd",
    "inplace_final_state": "fused_recurrent_kda_fwd",
    "out": "fused_recurrent_kda_fwd",
}


def refuse_unknown(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises TypeError for the first of ``given``, naming the nearest of ``known``."""
    for name in given:
        text = f"{function}: unknown keyword {name!r}"
        if name in _ELSEWHERE and _ELSEWHERE[name] != function:
            raise TypeError(f"{text}; it belongs to {_ELSEWHERE[name]}")
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        raise TypeError(f"{text}; did you mean {near[0]!r}?" if near else text)


def check_tensors(function: str, **tensors: Any) -> None:
    """Raises TypeError for an argument that must be a tensor and is not."""
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{function}: {name}: expected a torch.Tensor, given {type(value).__name__}"
            )


def check_optional_tensors(function: str, **tensors: Any) -> None:
    """Raises TypeError for an argument that must be a tensor or None and is neither."""
    check_tensors(function, **{name: value for name, value in tensors.items() if value is not None})


def check_float_dtype(function: str, name: str, dtype: torch.dtype | None) -> None:
    """Raises TypeError or ValueError unless ``dtype`` is a real floating-point one."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{function}: {name}: expected a torch.dtype, given {type(dtype).__name__}")
    if not dtype.is_floating_point:
        raise ValueError(f"{function}: {name}: expected a floating-point dtype, given {dtype}")


def check_number(function: str, name: str, value: Any) -> None:
    """Raises TypeError unless ``value`` is None or a real number."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, _NUMBERS)):
        raise TypeError(
            f"{function}: {name}: expected a number or None, given {type(value).__name__}"
        )


def check_whole(function: str, name: str, value: Any) -> None:
    """Raises TypeError unless ``value`` is a whole number."""
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"{function}: {name}: expected an int, given {type(value).__name__}")


def host_values(tensor: torch.Tensor) -> bool:
    """Whether the values of ``tensor`` can be looked at without a wait: in host memory, and not
    traced."""
    return type(tensor) is torch.Tensor and tensor.is_cpu and not torch.compiler.is_compiling()


_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


def v_first(function: str, state_v_first: bool, kwargs: dict[str, Any]) -> bool:
    """Takes the deprecated alias ``transpose_state_layout`` out of ``kwargs``."""
    if "transpose_state_layout" not in kwargs:
        return state_v_first
    alias = kwargs.pop("transpose_state_layout")
    if state_v_first:
        raise ValueError(
            f"{function}: state_v_first and its deprecated alias transpose_state_layout are both "
            "given"
        )
    warnings.warn(
        "transpose_state_layout is deprecated, use state_v_first",
        DeprecationWarning,
        stacklevel=4,
    )
    return bool(alias)


def _check_offsets(
    function: str, cu_seqlens: torch.Tensor | None, cu_seqlens_cpu: torch.Tensor | None
) -> None:
    if cu_seqlens_cpu is None:
        return
    if cu_seqlens is None:
        raise ValueError(f"{function}: cu_seqlens_cpu is a copy of cu_seqlens, which is missing")
    if cu_seqlens_cpu.shape != cu_seqlens.shape:
        raise ValueError(
            f"{function}: cu_seqlens_cpu: expected the shape of cu_seqlens "
            f"{list(cu_seqlens.shape)}, given {list(cu_seqlens_cpu.shape)}"
        )
    seen = host_values(cu_seqlens) and host_values(cu_seqlens_cpu)
    if seen and not torch.equal(cu_seqlens.long(), cu_seqlens_cpu.long()):
        raise ValueError(
            f"{function}: cu_seqlens_cpu: expected the values of cu_seqlens "
            f"{cu_seqlens.tolist()[:8]}, given {cu_seqlens_cpu.tolist()[:8]}"
        )


def native_options(
    function: str,
    *,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    chunk_size: int = 64,
    backend: str = "auto",
    **kwargs: Any,
) -> dict[str, Any]:
    """Keyword arguments of the native operator for a call with the ecosystem's keywords."""
    state_v_first = v_first(function, state_v_first, kwargs)
    if kwargs:
        refuse_unknown(function, kwargs, KEYWORDS)
    check_optional_tensors(
        function,
        A_log=A_log,
        dt_bias=dt_bias,
        initial_state=initial_state,
        cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens_cpu,
    )
    check_number(function, "scale", scale)
    check_number(function, "lower_bound", lower_bound)
    check_whole(function, "chunk_size", chunk_size)
    if not isinstance(backend, str):
        raise TypeError(f"{function}: backend: expected a str, given {type(backend).__name__}")
    if allow_neg_eigval and not use_beta_sigmoid_in_kernel:
        raise ValueError(
            f"{function}: allow_neg_eigval doubles sigmoid(beta) and needs "
            "use_beta_sigmoid_in_kernel=True"
        )
    if not use_gate_in_kernel:
        for name, value in (("A_log", A_log), ("dt_bias", dt_bias)):
            if value is not None:
                raise ValueError(
                    f"{function}: {name} is a parameter of the gate, which was not asked for "
                    "(use_gate_in_kernel=False: g is the decay itself)"
                )
        lower_bound = None  # describes the gate; a caller who computed g may still state it
    elif safe_gate and lower_bound is None:
        raise ValueError(
            f"{function}: safe_gate with use_gate_in_kernel needs lower_bound (it selects the "
            "bounded gate)"
        )
    _check_offsets(function, cu_seqlens, cu_seqlens_cpu)
    return {
        "a_log": A_log,
        "dt_bias": dt_bias,
        "initial_state": initial_state,
        "cu_seqlens": cu_seqlens,
        "scale": scale,
        "lower_bound": lower_bound,
        "raw_gate": use_gate_in_kernel,
        "beta_is_logit": use_beta_sigmoid_in_kernel,
        "beta_max": 2.0 if allow_neg_eigval else 1.0,
        "qk_l2norm": use_qk_l2norm_in_kernel,
        "state_v_first": state_v_first,
        "output_final_state": output_final_state,
        "chunk": chunk_size,
        "backend": backend,
    }


#: what native_options takes
KEYWORDS = tuple(name for name in native_options.__kwdefaults__ or ())
