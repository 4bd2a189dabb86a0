"""nvidia-cudnn-frontend's kernels for Hopper, from raw bf16 inputs to all gradients.

Its backward takes unit q and k, ready log-decays and beta in (0, 1), so flash-linear-attention's
l2norm and gate kernels (with their own backward) and torch's sigmoid stand around it. Two routes:

cudnn          forward ``kda_hopper`` (CuTe DSL), which keeps all of the decayed memory
cudnn-default  forward ``kda_hopper_cuda``, what it takes when asked for nothing. It starts the
               pieces of a sequence from zero where decay has dropped under 2^-23.5. Inference
               gives it the raw inputs (norm, gate and sigmoid inside); a step cannot.

Both overflow without a word where decay is much stronger than e^-5 a token (agreement.py sees it).
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from typing import Any

import torch
from common import LOWER_BOUND, Case, Engine, Inputs, states_by_value

EXACT, DEFAULT = "kda_hopper", "kda_hopper_cuda"


def transformed(x: Inputs, case: Case) -> tuple[torch.Tensor, ...]:
    """Unit q and k (bf16), log-decay (f32) and beta (f32) by flash-linear-attention's kernels."""
    from fla.modules.norm.l2norm import l2norm
    from fla.ops.kda.gate import fused_kda_gate

    bound = LOWER_BOUND if case.bounded else None
    decay = fused_kda_gate(x.g, x.a_log, x.dt_bias, lower_bound=bound)
    return l2norm(x.q), l2norm(x.k), decay, x.beta.float().sigmoid()


class _Attention(torch.autograd.Function):
    """Forward of the named plan; the only backward there is. Tensors [tokens, H, 128]."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v, decay, beta, state, offsets, plan = inputs
        attention = importlib.import_module("cudnn.linear_attention.ops").kimi_delta_attention
        ctx.save_for_backward(q, k, v, decay, beta, offsets, state)
        return attention(
            q, k, v, decay, beta, offsets,
            initial_state=state, output_final_state=True, plan_name=plan,
        )  # fmt: skip

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        d_o, d_state = gradients
        q, k, v, decay, beta, offsets, state = ctx.saved_tensors
        dq, dk, dv, d_decay, d_beta, d_start, *_ = torch.ops.cudnn.kimi_delta_attention_bwd(
            d_o, q, k, v, decay, beta, offsets, q.shape[-1] ** -0.5,
            initial_state=state, d_final_state=d_state,
        )  # fmt: skip
        return dq, dk, dv, d_decay, d_beta, d_start, None, None


class CudnnExact(Engine):
    name = "cudnn"
    plan = EXACT
    route = "CuTe forward, CUDA backward; FLA's l2norm and gate kernels around them"

    def __init__(self) -> None:
        needed = ["cudnn.linear_attention.ops", "cuda.bindings.nvrtc", "fla.ops.kda"]
        needed += ["cutlass.cute"] if self.plan == EXACT else []
        for name in needed:
            try:
                importlib.import_module(name)
            except Exception as error:  # a driver library may be missing as well
                self.missing = f"{name} cannot be imported ({type(error).__name__}: {error})"[:200]
                return

    def cannot(self, case: Case) -> str:
        if self.missing:
            return self.missing
        return f"D = 128 only, given {case.dim}" if case.dim != 128 else ""

    def adapt(self, x: Inputs, case: Case) -> Inputs:
        offsets = x.cu_seqlens
        if offsets is None:
            offsets = torch.arange(case.batch + 1, device="cuda") * case.tokens
        return dataclasses.replace(states_by_value(x), cu_seqlens=offsets.int())

    def release(self) -> None:
        kernel = sys.modules.get("cudnn.linear_attention.hopper.kernel.kda_prefill_sm90")
        getattr(kernel, "_WS", {}).clear()  # its scratch of every shape so far

    def attention(self, x: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
        """The forward that a backward can follow."""
        q, k, decay, beta = transformed(x, case)
        flat = (t.flatten(0, 1) for t in (q, k, x.v, decay, beta))
        o, state = _Attention.apply(*flat, x.state.mT, x.cu_seqlens, self.plan)
        return o.view(x.v.shape), state.mT

    def forward(self, x: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
        return self.attention(x, case)


class CudnnDefault(CudnnExact):
    name = "cudnn-default"
    plan = DEFAULT
    route = (
        "forward raw inputs into its CUDA kernel; step: that kernel and its backward with FLA's "
        "l2norm and gate kernels around them"
    )

    def cannot(self, case: Case) -> str:
        return super().cannot(case) or ("" if case.bounded else "raw gates: bounded only")

    def forward(self, x: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
        if torch.is_grad_enabled():
            return self.attention(x, case)
        attention = importlib.import_module("cudnn.linear_attention.ops").kimi_delta_attention
        o, state = attention(
            *(t.flatten(0, 1) for t in (x.q, x.k, x.v, x.g, x.beta)),
            x.cu_seqlens,
            initial_state=x.state.mT,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            safe_gate=True,
            gate_lower_bound=LOWER_BOUND,
            a_log=x.a_log,
            dt_bias=x.dt_bias.view(case.heads, case.dim),
            plan_name=self.plan,
        )
        return o.view(x.v.shape), state.mT
