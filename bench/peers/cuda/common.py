"""Cases, inputs and engines shared by the comparisons on a GPU. Peers are called, never copied."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import math
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch

LOWER_BOUND = -5.0
PACKED = (1300, 547, 2048, 963, 271, 3063)
#: A_log 0. strong: g ~ N(0, 1), about -2.5 nats a token. weak: the same with a bias that leaves
#: about -0.01. init: g ~ N(0, 1/4) and the bias of a fresh layer, where decay is as weak.
GATES = ("strong", "weak", "init")
WEAK_BIAS = math.log(0.002) - 0.5  # of N(0, 1): mean of -5 sigmoid(x + bias) is about -0.01


@dataclasses.dataclass(frozen=True)
class Case:
    """Shape of one call; ``lengths`` packs sequences into one row."""

    batch: int
    tokens: int
    heads: int
    dim: int = 128
    lengths: tuple[int, ...] | None = None
    bounded: bool = True
    gate: str = "strong"

    @property
    def name(self) -> str:
        where = f"B{self.batch} T{self.tokens}"
        if self.lengths == PACKED:
            where = "6 packed, T8192"
        elif self.lengths:
            where = f"{len(self.lengths)} x {self.lengths[0]} packed"
        kind = "" if self.bounded else ", standard gate"
        kind += "" if self.gate == "strong" else f", {self.gate}"
        return f"{where} H{self.heads} D{self.dim}{kind}"


@dataclasses.dataclass
class Inputs:
    """Raw bf16 tensors: gate, norm and sigmoid are inside the call."""

    q: torch.Tensor  # [B, T, H, D] bf16, as k, v, g
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor  # [B, T, H] bf16 logits
    a_log: torch.Tensor  # [H] f32
    dt_bias: torch.Tensor  # [H * D] f32
    state: torch.Tensor  # [N, H, D, D] f32
    d_o: torch.Tensor  # [B, T, H, D] bf16
    d_state: torch.Tensor  # [N, H, D, D] f32
    cu_seqlens: torch.Tensor | None  # [N + 1] i64

    def leaves(self) -> list[torch.Tensor]:
        return [
            self.q, self.k, self.v, self.g, self.beta, self.a_log, self.dt_bias, self.state
        ]  # fmt: skip


def make_inputs(case: Case, seed: int = 0, gate: Callable | None = None, bias: float = 0.0):
    """Random inputs on the GPU. ``gate(shape, generator)`` draws g; by default ``case.gate`` says
    how, and what of dt_bias."""
    random = torch.Generator(device="cuda").manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, device="cuda")

    shape = (case.batch, case.tokens, case.heads, case.dim)
    sequences = len(case.lengths) if case.lengths else case.batch
    states = (sequences, case.heads, case.dim, case.dim)
    offsets = None
    if case.lengths:
        offsets = torch.tensor([0, *case.lengths]).cumsum(0).cuda()
    g = normal(*shape) if gate is None else gate(shape, random)
    dt_bias = torch.full((case.heads * case.dim,), bias, device="cuda")
    if gate is None and case.gate == "weak":
        dt_bias += WEAK_BIAS
    elif gate is None and case.gate == "init":
        g *= 0.5
        low, high = math.log(1e-3), math.log(0.1)
        step = torch.rand(dt_bias.shape, generator=random, device="cuda") * (high - low) + low
        dt_bias = step.exp().expm1().log()  # inverse of softplus
    return Inputs(
        q=normal(*shape).bfloat16(),
        k=normal(*shape).bfloat16(),
        v=normal(*shape).bfloat16(),
        g=g.bfloat16(),
        beta=normal(*shape[:3]).bfloat16(),
        a_log=torch.zeros(case.heads, device="cuda"),
        dt_bias=dt_bias,
        state=normal(*states),
        d_o=normal(*shape).bfloat16(),
        d_state=normal(*states),
        cu_seqlens=offsets,
    )


class Engine:
    """One implementation. ``missing`` says why it cannot run, or is empty; ``route`` what of it
    runs, where it has several ways."""

    name = ""
    trains = True
    missing = ""
    route = ""

    def cannot(self, case: Case) -> str:
        """Why this engine does not serve a case; empty if it does."""
        return self.missing

    def adapt(self, x: Inputs, case: Case) -> Inputs:
        """The same inputs with states and offsets laid out as this engine reads them: what a
        caller of it would keep, outside the times."""
        return x

    def release(self) -> None:
        """Drops memory that the engine keeps for the shapes it has seen."""

    def forward(self, x: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and final state [N, H, K, V]."""
        raise NotImplementedError

    def step(self, x: Inputs, case: Case) -> tuple[torch.Tensor, ...]:
        """Output, final state and the gradients of ``x.leaves()``, which require them."""
        o, state = self.forward(x, case)
        return o, state, *torch.autograd.grad([o, state], x.leaves(), [x.d_o, x.d_state])


def states_by_value(x: Inputs) -> Inputs:
    """States stored [N, H, V, K] and read as [N, H, K, V]: ``x.state.mT`` is contiguous."""
    state, d_state = (t.mT.contiguous().mT for t in (x.state, x.d_state))
    return dataclasses.replace(x, state=state, d_state=d_state)


class _ChunkKda(Engine):
    """Both packages that have ``chunk_kda`` take the same arguments."""

    function: Callable

    def forward(self, x: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
        return self.function(
            x.q,
            x.k,
            x.v,
            x.g,
            x.beta,
            A_log=x.a_log,
            dt_bias=x.dt_bias,
            initial_state=x.state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            safe_gate=case.bounded,
            lower_bound=LOWER_BOUND if case.bounded else None,
            cu_seqlens=x.cu_seqlens,
        )


class Kda(_ChunkKda):
    name = "kda"

    def __init__(self) -> None:
        import kda

        self.missing = kda.build_info().cuda_reason
        self.function = kda.chunk_kda


class Fla(_ChunkKda):
    """flash-linear-attention, its own Triton kernels (FLA_FLASH_KDA=0 keeps FlashKDA out)."""

    name = "FLA"

    def __init__(self) -> None:
        try:
            self.function = importlib.import_module("fla.ops.kda").chunk_kda
        except ImportError as error:
            self.missing = f"flash-linear-attention is not installed ({error})"


class FlashKda(Engine):
    """Inference only, bf16, D = 128, bounded gate."""

    name = "FlashKDA"
    trains = False

    def __init__(self) -> None:
        try:
            self.run = importlib.import_module("flash_kda").fwd
        except ImportError as error:
            self.missing = f"FlashKDA is not installed ({error})"

    def cannot(self, case: Case) -> str:
        if self.missing:
            return self.missing
        if case.dim != 128:
            return f"D = 128 only, given {case.dim}"
        return "" if case.bounded else "bounded gate only"

    def adapt(self, x: Inputs, case: Case) -> Inputs:
        return states_by_value(x)

    def forward(self, x: Inputs, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
        o = torch.empty_like(x.v)
        start = x.state.mT.contiguous()
        state = torch.empty_like(start)
        self.run(
            x.q,
            x.k,
            x.v,
            x.g,
            x.beta,
            case.dim**-0.5,
            o,
            x.a_log,
            x.dt_bias.view(case.heads, case.dim),
            LOWER_BOUND,
            initial_state=start,
            final_state=state,
            cu_seqlens=x.cu_seqlens,
        )
        return o, state.mT


def engines(names: list[str]) -> list[Engine]:
    from cudnn_engine import CudnnDefault, CudnnExact

    known = {cls.name.lower(): cls for cls in (Kda, Fla, FlashKda, CudnnExact, CudnnDefault)}
    return [known[name.lower()]() for name in names]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def commit() -> str:
    """Of this source tree; ``KDA_COMMIT`` where the tree has no history."""
    if "KDA_COMMIT" in os.environ:
        return os.environ["KDA_COMMIT"]
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"


def machine() -> dict[str, str]:
    """What the tables say about where they come from."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "kda": commit(),
        "fla": _version("flash-linear-attention"),
        "fla-core": _version("fla-core"),
        "cudnn-frontend": _version("nvidia-cudnn-frontend"),
        "cutlass-dsl": _version("nvidia-cutlass-dsl"),
        "python": platform.python_version(),
    }
