"""Importing, finding the library, versions, threads, backend choice, signatures."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
import zipfile
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
    absent = kda.build_info().cuda_reason
    why = f"not loaded: {absent}" if absent else "the tensors are in host memory"
    assert f"  cuda: {why}\n" in text
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
    "cp_context use_graph max_num_seqs",
    "fused_recurrent_kda": "q k v g beta A_log dt_bias scale initial_state output_final_state "
    "use_qk_l2norm_in_kernel use_gate_in_kernel use_beta_sigmoid_in_kernel allow_neg_eigval "
    "lower_bound state_v_first cu_seqlens",
    "fused_recurrent_kda_fwd": "q k v g beta A_log dt_bias initial_state scale "
    "output_final_state inplace_final_state state_v_first cu_seqlens ssm_state_indices "
    "num_accepted_tokens use_qk_l2norm_in_kernel use_gate_in_kernel "
    "use_beta_sigmoid_in_kernel allow_neg_eigval lower_bound out",
    "fused_kda_gate": "g A_log dt_bias lower_bound output_dtype",
    "kda_gate_chunk_cumsum": "g A_log chunk_size scale dt_bias cu_seqlens output_dtype "
    "chunk_indices lower_bound use_graph",
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

    hints = {"disable_recompute", "return_intermediate_states", "cp_context", "use_graph"}
    hints.add("max_num_seqs")
    parameters = set(inspect.signature(kda.chunk_kda).parameters)
    assert parameters - set(KEYWORDS) - hints == {"q", "k", "v", "g", "beta", "kwargs"}


def with_companions(library: Path) -> list[Path]:
    """The library, and what lies beside it because the machine has no such package."""
    return [library, *library.parent.glob("libhwy.so*")]


def library_folder(tmp_path: Path, note: str | None) -> Path:
    """A copy of the library with another note beside it."""
    folder = tmp_path / "lib"
    folder.mkdir()
    for path in with_companions(_library.load()):
        shutil.copy2(path, folder / path.name)
    if note is not None:
        (folder / "kda_build.json").write_text(note)
    return folder


def test_another_torch_is_refused_before_loading(tmp_path) -> None:
    folder = library_folder(tmp_path, '{"version": "0.1.0", "torch": "2.10.1"}')
    (folder / "libkda_torch.so").unlink()
    (folder / "libkda_torch.so").write_bytes(b"never read")
    done = python("import kda; kda.chunk_kda", KDA_LIBRARY=str(folder))
    assert f"was built for torch 2.10.1, but this is torch {torch.__version__}" in done.stderr
    assert "Install torch 2.10.1, or build kda against this torch" in done.stderr


def test_the_note_of_the_build(tmp_path) -> None:
    release = torch.__version__.partition("+")[0]
    for built_for in (release, f"{release}+cu999"):  # a build for another CUDA has the same ABI
        _library._check_torch(Path("lib.so"), built_for, torch.__version__)
    _library._check_torch(Path("lib.so"), None, torch.__version__)
    folder = library_folder(tmp_path, None)
    done = python("import kda; print(kda.build_info().torch)", KDA_LIBRARY=str(folder))
    assert done.stdout == "None\n", done.stderr
    (folder / "kda_build.json").write_text("{")
    done = python("import kda; kda.build_info()", KDA_LIBRARY=str(folder))
    assert "kda_build.json cannot be read" in done.stderr


def test_build_info_says_why_there_is_no_cuda(tmp_path) -> None:
    info = kda.build_info()
    assert info.version == kda.__version__
    assert info.library == _library.load()
    assert (info.cuda_library is None) == bool(info.cuda_reason)
    folder = library_folder(tmp_path, None)
    code = "import kda; print(kda.build_info().cuda_reason)"
    done = python(code, KDA_LIBRARY=str(folder))
    assert "this build has no libkda_torch_cuda.so (configure with -DKDA_CUDA=ON)" in done.stdout
    (folder / "libkda_torch_cuda.so").write_bytes(b"never read without a GPU")
    done = python(code, KDA_LIBRARY=str(folder), CUDA_VISIBLE_DEVICES="")
    assert "no usable GPU (torch.cuda.is_available() is False)" in done.stdout, done.stderr


def test_wheel_is_native_and_names_its_torch(tmp_path) -> None:
    """`pip wheel .` on a copy of the package that holds this library."""
    setuptools = pytest.importorskip("setuptools", minversion="70.1")
    assert setuptools is not None
    note = _library.load().with_name("kda_build.json")
    if not note.is_file():
        pytest.skip("a library without its note, which wheels need (`make build` writes it)")
    source = tmp_path / "source"
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        source.mkdir(exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    shutil.copytree(
        ROOT / "python",
        source / "python",
        ignore=shutil.ignore_patterns("lib", "__pycache__", "*.egg-info"),
    )
    (source / "python/kda/lib").mkdir()
    for path in (*with_companions(_library.load()), note):
        shutil.copy2(path, source / "python/kda/lib" / path.name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "-w", str(tmp_path), str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    release = torch.__version__.partition("+")[0]
    assert wheel.name.startswith(f"kda-{kda.__version__}+torch{release}.cpu-py3-none-linux_")
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    metadata = next(unpacked.glob("*.dist-info/METADATA")).read_text()
    assert f"Requires-Dist: torch=={release}" in metadata
    library = unpacked / "kda/lib/libkda_torch.so"
    content = library.read_bytes()
    assert b"$ORIGIN:$ORIGIN/../../torch/lib\0" in content
    assert f":{ROOT}".encode() not in content  # no folder of the build machine is searched
    done = python(
        "import kda; print(kda.build_info().library); print(kda.backends())",
        PYTHONPATH=str(unpacked),
        KDA_LIBRARY="",
    )
    assert done.stdout.splitlines() == [str(library), "['cpu', 'ref']"], done.stderr


def test_cuda_library_joins_the_one_registry_without_a_gpu() -> None:
    """A second copy of the backend registry would take the CUDA backend for itself."""
    library = _library.load().with_name("libkda_torch_cuda.so")
    if not library.is_file():
        pytest.skip(f"no {library.name} beside the library (configure with -DKDA_CUDA=ON)")
    done = python(
        "import torch, kda\n"
        "print(kda.backends())\n"
        f"torch.ops.load_library({str(library)!r})\n"
        "print(kda.backends())\n"
        "x = torch.rand(1, 3, 1, 4)\n"
        "try: kda.chunk_kda(x, x, x, -x, x[..., 0], backend='cuda')\n"
        "except NotImplementedError as error: print(error)\n",
        CUDA_VISIBLE_DEVICES="",
        KDA_LIBRARY=str(library.parent),
    )
    assert done.stdout.splitlines() == [
        "['cpu', 'ref']",
        "['cuda', 'cpu', 'ref']",
        "chunk_forward: backend cuda cannot serve this call: the tensors are in host memory",
    ], done.stderr
