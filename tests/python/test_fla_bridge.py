"""kda.integrations.fla against a package of the same layout, and the real one where installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import kda
import kda.integrations.fla as bridge
from gpu import DEVICES, NEEDS_CUDA
from oracle import make_call

NAMES = (
    "chunk_kda",
    "fused_recurrent_kda",
    "fused_recurrent_kda_fwd",
    "fused_kda_gate",
    "kda_gate_chunk_cumsum",
)


def define(*names: str) -> str:
    return "".join(f"def {n}(*args, **kwargs):\n    return 'theirs: {n}'\n\n\n" for n in names)


#: the layout of flash-linear-attention: definitions, re-exports, internal users, layers
FILES = {
    "fla/__init__.py": "",
    "fla/ops/__init__.py": "from fla.ops.kda import chunk_kda, fused_recurrent_kda\n",
    "fla/ops/kda/__init__.py": """
        from fla.ops.kda.chunk import chunk_kda
        from fla.ops.kda.fused_recurrent import fused_recurrent_kda
    """,
    "fla/ops/kda/gate.py": define("fused_kda_gate", "kda_gate_chunk_cumsum"),
    "fla/ops/kda/chunk_fwd.py": "from fla.ops.kda.gate import kda_gate_chunk_cumsum\n",
    "fla/ops/kda/chunk.py": "import fla.ops.kda.chunk_fwd\n\n\n" + define("chunk_kda"),
    "fla/ops/kda/fused_recurrent.py": define("fused_recurrent_kda", "fused_recurrent_kda_fwd"),
    "fla/layers/__init__.py": "",
    "fla/layers/kda.py": "from fla.ops.kda import chunk_kda as run, fused_recurrent_kda\n",
    "fla/layers/late.py": "from fla.ops.kda.gate import fused_kda_gate\n",
    "user_model.py": "from fla.ops.kda import chunk_kda\n",
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def forget() -> None:
    for name in [n for n in sys.modules if n.split(".")[0] in ("fla", "user_model")]:
        del sys.modules[name]


@pytest.fixture
def fake_fla(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that provides fla; the tests may change it before the first import."""
    saved = {n: m for n, m in sys.modules.items() if n.split(".")[0] == "fla"}
    forget()
    write(tmp_path, FILES)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    bridge.unpatch()
    forget()
    sys.modules.update(saved)


def module(name: str) -> types.ModuleType:
    return importlib.import_module(name)


def test_routes_and_restores(fake_fla: Path) -> None:
    layer, user = module("fla.layers.kda"), module("user_model")
    assert not bridge.is_patched()
    assert bridge.patch() == NAMES
    assert bridge.is_patched()
    assert module("fla.ops.kda").chunk_kda is kda.chunk_kda
    assert module("fla.ops").fused_recurrent_kda is kda.fused_recurrent_kda
    assert module("fla.ops.kda.chunk").chunk_kda is kda.chunk_kda
    assert module("fla.ops.kda.gate").fused_kda_gate is kda.fused_kda_gate
    recurrent = module("fla.ops.kda.fused_recurrent")
    assert recurrent.fused_recurrent_kda_fwd is kda.fused_recurrent_kda_fwd
    assert layer.run is kda.chunk_kda
    # Stages of their kernels keep their own, modules outside fla are the caller's.
    assert (
        module("fla.ops.kda.chunk_fwd").kda_gate_chunk_cumsum() == "theirs: kda_gate_chunk_cumsum"
    )
    assert user.chunk_kda() == "theirs: chunk_kda"
    late = module("fla.layers.late")
    assert late.fused_kda_gate is kda.fused_kda_gate

    call = make_call(tokens=5)
    assert torch.equal(layer.run(*call.tensors())[0], kda.chunk_kda(*call.tensors())[0])

    bridge.unpatch()
    assert not bridge.is_patched()
    for name, home in (("chunk_kda", "chunk"), ("fused_kda_gate", "gate")):
        assert getattr(module(f"fla.ops.kda.{home}"), name)() == f"theirs: {name}"
    assert module("fla.ops").chunk_kda() == layer.run() == "theirs: chunk_kda"
    assert late.fused_kda_gate() == "theirs: fused_kda_gate"
    bridge.unpatch()  # again: nothing to undo


def test_named_modules_are_routed_too(fake_fla: Path) -> None:
    user = module("user_model")
    bridge.patch()
    bridge.patch(modules=[user])
    assert user.chunk_kda is kda.chunk_kda
    bridge.unpatch()
    assert user.chunk_kda() == "theirs: chunk_kda"


def test_context_manager(fake_fla: Path) -> None:
    ops = module("fla.ops.kda")
    with bridge.patched() as names:
        assert names == NAMES
        with bridge.patched():
            assert ops.chunk_kda is kda.chunk_kda
        assert ops.chunk_kda is kda.chunk_kda  # the inner block leaves the outer patch
    assert ops.chunk_kda() == "theirs: chunk_kda"
    with pytest.raises(RuntimeError, match="inside"), bridge.patched():
        raise RuntimeError("inside")
    assert ops.chunk_kda() == "theirs: chunk_kda"
    assert not bridge.is_patched()


def test_an_older_release_without_the_rest(fake_fla: Path) -> None:
    write(
        fake_fla,
        {
            "fla/ops/kda/gate.py": define("fused_kda_gate"),
            "fla/ops/kda/chunk_fwd.py": "",
            "fla/ops/kda/fused_recurrent.py": define("fused_recurrent_kda"),
        },
    )
    assert bridge.patch() == ("chunk_kda", "fused_recurrent_kda", "fused_kda_gate")


def test_a_release_without_kda(fake_fla: Path) -> None:
    (fake_fla / "fla/ops/__init__.py").write_text("")
    for path in (fake_fla / "fla/ops/kda").iterdir():
        path.unlink()
    (fake_fla / "fla/ops/kda").rmdir()
    with pytest.raises(ImportError, match=r"has no fla\.ops\.kda"):
        bridge.patch()
    assert not bridge.is_patched()


def test_a_release_without_a_required_function(fake_fla: Path) -> None:
    (fake_fla / "fla/ops/kda/gate.py").write_text(define("kda_gate_chunk_cumsum"))
    with pytest.raises(ImportError, match=r"has no fla\.ops\.kda\.gate\.fused_kda_gate"):
        bridge.patch()
    assert not bridge.is_patched()


def test_a_broken_installation_keeps_its_own_error(fake_fla: Path) -> None:
    (fake_fla / "fla/ops/kda/chunk.py").write_text("import a_module_that_is_not_there\n")
    with pytest.raises(ImportError, match="a_module_that_is_not_there"):
        bridge.patch()


@pytest.mark.skipif(
    importlib.util.find_spec("fla") is not None, reason="flash-linear-attention is installed"
)
def test_without_fla() -> None:
    with pytest.raises(ImportError, match="flash-linear-attention is not installed"):
        bridge.patch()
    assert not bridge.is_patched()


def require_real() -> None:
    if importlib.util.find_spec("fla") is None:
        pytest.skip("flash-linear-attention is not installed")


@pytest.mark.filterwarnings("ignore:Triton is not supported")
@pytest.mark.parametrize("device", DEVICES)
def test_the_real_package(device: str) -> None:
    require_real()
    ops, gate = module("fla.ops.kda"), module("fla.ops.kda.gate")
    before = ops.chunk_kda, ops.fused_recurrent_kda, gate.fused_kda_gate
    call = make_call(dtype=torch.bfloat16, tokens=100, key_dim=64, value_dim=64, l2norm=True)
    call = call.to(device)
    with bridge.patched() as names:
        assert {"chunk_kda", "fused_recurrent_kda", "fused_kda_gate"} <= set(names)
        assert ops.chunk_kda is kda.chunk_kda
        assert gate.fused_kda_gate is kda.fused_kda_gate
        recorded = call.recorded()
        o, _ = ops.chunk_kda(*recorded.tensors(), **recorded.options)
        gradients = torch.autograd.grad(o.sum(), recorded.tensors())
    assert before == (ops.chunk_kda, ops.fused_recurrent_kda, gate.fused_kda_gate)
    assert ops.chunk_kda is not kda.chunk_kda
    twin = call.recorded()
    direct, _ = kda.chunk_kda(*twin.tensors(), **twin.options)
    assert torch.equal(o, direct)
    wanted = torch.autograd.grad(direct.sum(), twin.tensors())
    for one, other in zip(gradients, wanted, strict=True):
        assert torch.equal(one, other)


@NEEDS_CUDA
@pytest.mark.slow
def test_the_layer_of_the_real_package() -> None:
    """Their layer, training and decoding, on our operator. (Their other kernels are tuned first.)"""
    require_real()
    layers = pytest.importorskip("fla.layers.kda")
    with bridge.patched():
        assert layers.chunk_kda is kda.chunk_kda
        block = layers.KimiDeltaAttention(hidden_size=128, head_dim=64, num_heads=2).cuda()
        x = torch.randn(1, 70, 128, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = block(x)[0]
        y.float().square().sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert x.grad.any()
    assert block.A_log.grad is not None
    assert block.A_log.grad.isfinite().all()
