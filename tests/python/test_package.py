"""Importing, finding the library, versions, threads, backend choice, signatures."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kda
from kda import _library, ops
from oracle import make_call

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(kda.__file__).parent


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python"), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False
    )


def test_import_alone_loads_neither_torch_nor_the_library() -> None:
    code = (
        "import sys, kda\n"
        "import kda.corpus\n"
        "assert kda.__version__ and 'chunk_kda' in dir(kda)\n"
        "assert 'torch' not in sys.modules and 'kda.ops' not in sys.modules\n"
        "try: kda.nothing\n"
        "except AttributeError as error: print(error)\n"
    )
    done = python(code, KDA_LIBRARY="/nowhere")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "module 'kda' has no attribute 'nothing'\n"


def test_library_named_by_the_environment() -> None:
    library = _library.load()
    code = "import kda._library as l; print(l.load())"
    for value in (library, library.parent):
        done = python(code, KDA_LIBRARY=str(value))
        assert done.stdout.strip() == str(library.resolve()), done.stderr
    done = python("from kda import chunk_kda", KDA_LIBRARY="/nowhere/lib.so")
    assert "ImportError: kda: KDA_LIBRARY names /nowhere/lib.so, but there is no" in done.stderr


def test_search_order_and_the_error_when_nothing_is_there(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("KDA_LIBRARY", raising=False)
    package = tmp_path / "python" / "kda"
    package.mkdir(parents=True)
    monkeypatch.setattr(_library, "_PACKAGE", package)
    with pytest.raises(ImportError) as caught:
        _library.find()
    for part in ("KDA_LIBRARY", str(package / "lib"), "build/*/lib", "make build"):
        assert part in str(caught.value)

    def touch(path: Path, age: int) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
        return path

    (tmp_path / "CMakeLists.txt").write_text("")
    old = touch(tmp_path / "build/debug/lib/libkda_torch.so", 10)
    assert _library.find() == old
    new = touch(tmp_path / "build/release/lib/libkda_torch.so", 5)
    assert _library.find() == new
    packaged = touch(package / "lib/libkda_torch.so", 100)
    assert _library.find() == packaged
    monkeypatch.setenv("KDA_LIBRARY", str(old))
    assert _library.find() == old


def test_a_broken_library_is_an_import_error(tmp_path) -> None:
    broken = tmp_path / "libkda_torch.so"
    broken.write_bytes(b"not a library")
    done = python("import kda; kda.chunk_kda", KDA_LIBRARY=str(broken))
    assert "ImportError: kda: " in done.stderr
    assert "could not be loaded by torch" in done.stderr


def test_one_version_everywhere() -> None:
    assert torch.ops.kda.version() == kda.__version__
    header = (ROOT / "include/kda/version.h").read_text()
    numbers = re.findall(r"#define KDA_VERSION_\w+ (\d+)", header)
    assert ".".join(numbers) == kda.__version__
    cmake = re.search(r"project\(kda VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert cmake is not None
    assert cmake.group(1) == kda.__version__
    assert (PACKAGE / "py.typed").is_file()


def test_one_thread_setting() -> None:
    before = kda.num_threads()
    try:
        kda.set_num_threads(3)
        assert kda.num_threads() == 3
        assert torch.get_num_threads() == 3
        call = make_call(tokens=70, dtype=torch.float32)
        three = kda.chunk_kda(*call.tensors())[0]
        kda.set_num_threads(1)
        assert kda.num_threads() == torch.get_num_threads() == 1
        assert torch.equal(kda.chunk_kda(*call.tensors())[0], three)
    finally:
        kda.set_num_threads(before)


def test_default_thread_count() -> None:
    done = python(
        "import kda, torch; kda.set_num_threads(5); kda.set_num_threads(0);"
        "print(kda.num_threads(), torch.get_num_threads())",
        OMP_NUM_THREADS="2",
        KDA_LIBRARY=str(_library.load()),
    )
    assert done.stdout == "2 2\n", done.stderr


def test_explain_names_every_backend() -> None:
    call = make_call(tokens=5)
    choice = kda.explain(*call.tensors(), **call.options)
    assert [v.backend for v in choice.verdicts] == ["cuda", "cpu", "ref"]
    assert choice.chosen in kda.backends()
    served = {v.backend: v.can_serve for v in choice.verdicts}
    assert served[choice.chosen]
    assert served["ref"]
    assert not served["cuda"]
    assert all(v.reason for v in choice.verdicts if not v.can_serve)
    text = str(choice)
    assert text.startswith(f"backend: {choice.chosen}\n")
    assert "cuda: not loaded" in text
    for op in ("chunk_bwd", "recurrent"):
        assert kda.explain(*call.tensors(), op=op, return_intermediate_states=True).chosen
    with pytest.raises(ValueError, match="op: expected chunk_fwd, chunk_bwd or recurrent"):
        kda.explain(*call.tensors(), op="forward")
    with pytest.raises(ValueError, match="k: expected"):
        kda.explain(call.q, call.k[:1], *call.tensors()[2:])


def test_backends_agree() -> None:
    call = make_call(tokens=70, dtype=torch.float32, key_dim=16, value_dim=16)
    outputs = {
        v.backend: kda.chunk_kda(*call.tensors(), backend=v.backend)[0]
        for v in kda.explain(*call.tensors()).verdicts
        if v.can_serve
    }
    for o in outputs.values():
        assert torch.allclose(o, outputs["ref"], atol=1e-5)


#: parameters in the order of the ecosystem's functions, which callers may pass by position
SIGNATURES = {
    "chunk_kda": "q k v g beta scale initial_state output_final_state use_qk_l2norm_in_kernel "
    "use_gate_in_kernel use_beta_sigmoid_in_kernel allow_neg_eigval safe_gate lower_bound "
    "disable_recompute return_intermediate_states state_v_first cu_seqlens cu_seqlens_cpu "
    "cp_context",
    "fused_recurrent_kda": "q k v g beta A_log dt_bias scale initial_state output_final_state "
    "use_qk_l2norm_in_kernel use_gate_in_kernel use_beta_sigmoid_in_kernel allow_neg_eigval "
    "lower_bound state_v_first cu_seqlens",
    "fused_recurrent_kda_fwd": "q k v g beta A_log dt_bias initial_state scale "
    "output_final_state inplace_final_state state_v_first cu_seqlens ssm_state_indices "
    "num_accepted_tokens use_qk_l2norm_in_kernel use_gate_in_kernel "
    "use_beta_sigmoid_in_kernel allow_neg_eigval lower_bound out",
    "fused_kda_gate": "g A_log dt_bias lower_bound output_dtype",
    "kda_gate_chunk_cumsum": "g A_log chunk_size scale dt_bias cu_seqlens output_dtype "
    "chunk_indices lower_bound",
    "naive_recurrent_kda": "q k v g beta scale initial_state output_final_state",
    "naive_chunk_kda": "q k v g beta scale initial_state output_final_state chunk_size",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_positional_parameters_of_the_ecosystem(name: str) -> None:
    function = getattr(kda, name)
    positional = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    assert positional == SIGNATURES[name].split()
    assert function.__doc__
    assert name in kda.__all__


def test_everything_offered_exists() -> None:
    for name in kda.__all__:
        assert getattr(kda, name) is not None
    for name in ops.__all__:
        assert getattr(ops, name) is getattr(kda, name)


def test_keywords_of_chunk_kda_reach_explain() -> None:
    from kda.ops._arguments import KEYWORDS

    hints = {"disable_recompute", "return_intermediate_states", "cp_context"}
    parameters = set(inspect.signature(kda.chunk_kda).parameters)
    assert parameters - set(KEYWORDS) - hints == {"q", "k", "v", "g", "beta", "kwargs"}
