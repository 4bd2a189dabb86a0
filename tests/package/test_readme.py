"""What README.md says, done: its commands on a small corpus, its programs, its links."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ["KDA_PROGRAM"])
BUILD = Path(os.environ["KDA_BUILD"])
README = (ROOT / "README.md").read_text()
#: added behind the README's options, of which the last wins: the same work in seconds
SMALLER = {
    "data build": "--preset tiny",
    "tokenizer train": "--vocab-size 600",
    "train": "--steps 2 --warmup 1 --batch 1 --seq-len 32 --eval-tokens 64 --sample-every off",
    "train --resume": "--steps 3",
    "sft": "--max-tokens 64 --warmup 1 --batch 1 --seq-len 64 --eval-tokens 64 --sample-every off",
    "eval mt": "--limit 1 --max-new-tokens 2 --batch 1 --direction en2zh",
    "generate": "--max-new-tokens 2",
}


def blocks(language: str) -> list[str]:
    """Texts between fences that name this language ("" for none)."""
    parts = re.split(r"^```(\w*)\n", README, flags=re.MULTILINE)
    return [text for name, text in zip(parts[1::4], parts[2::4], strict=True) if name == language]


def run(words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    return subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=cwd, env=environment
    )


def program_lines() -> list[list[str]]:
    """Lines `$kda ...` of the README as words, comments left out."""
    text = "".join(block for block in blocks("") if "$kda " in block).replace("\\\n", " ")
    return [
        shlex.split(row, comments=True)[1:] for row in text.splitlines() if row.startswith("$kda ")
    ]


def smaller(words: list[str]) -> list[str]:
    name = max(
        (key for key in SMALLER if words[: len(key.split())] == key.split()), key=len, default=""
    )
    out = [*words, *SMALLER.get(name, "").split()]
    if name == "sft":  # --epochs and --max-tokens exclude each other
        at = out.index("--epochs")
        del out[at : at + 2]
    return out


def test_commands_in_their_order(tmp_path: Path) -> None:
    lines = program_lines()
    verbs = [words[0] for words in lines]
    assert {"data", "tokenizer", "train", "generate", "sft", "eval", "doctor"} <= set(verbs)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    for words in lines:
        if "--config" in words:  # a large model: what the file says is read, not trained
            tokenizer = ["--tokenizer", "data/debian-full/spm16k.model"]
            done = run([str(PROGRAM), *words, *tokenizer, "--dump-config"], tmp_path)
            assert done.returncode == 0, (words, done.stderr)
            continue
        if "runs/translator/best" in words:
            shutil.copytree(tmp_path / "runs/toy-mt", tmp_path / "runs/translator")
        done = run([str(PROGRAM), *smaller(words)], tmp_path)
        assert done.returncode == 0, (words, done.stdout[-500:], done.stderr)
        if words[0] == "generate":
            assert done.stdout.startswith(words[words.index("--prompt") + 1])
        if words[:2] == ["eval", "mt"]:
            assert "BLEU" in done.stdout
    assert (tmp_path / "runs/toy/step-000003").is_dir()  # the resumed run went on


def test_cpp_example_compiles_and_is_right(tmp_path: Path) -> None:
    (block,) = blocks("cpp")
    include, code = block.split("\n", 1)
    (tmp_path / "main.cpp").write_text(
        "#include <cmath>\n#include <vector>\n" + include.split("//")[0] + "\nint main() {\n"
        "  const long B = 1, T = 3, H = 1, HV = 1, K = 2, V = 2;\n"
        "  std::vector<float> q(6, 0.5f), k(6, 0.5f), v(6, 1.0f), g(6, 0.0f), beta(3, 1.0f), o(6);\n"
        + code
        # decay 1, step 1: every token recalls half of v, read with scale 1/sqrt(2) and q.k = 1/2
        + "  return std::abs(o[0] - 0.5f / std::sqrt(2.0f)) < 1e-6f ? 0 : 1;\n}\n"
    )
    command = ["c++", "-std=c++20", "-fopenmp", f"-I{ROOT / 'include'}", "main.cpp", "-o", "main"]
    libraries = [str(BUILD / "lib/libkda.a"), "-lhwy", "-ldl"]
    done = run([*command, *libraries], tmp_path)
    assert done.returncode == 0, done.stderr
    assert run(["./main"], tmp_path).returncode == 0


def test_python_example_runs(tmp_path: Path) -> None:
    (block,) = blocks("python")
    code = (
        "import torch\n"
        "make = lambda *s: torch.rand(*s).requires_grad_()\n"
        "q, k, v, g = (make(1, 8, 2, 16) for _ in range(4))\n"
        "g = -g\nbeta = torch.rand(1, 8, 2)\n" + block + "assert state.shape == (1, 2, 16, 16)\n"
        "assert q.grad is not None and torch.isfinite(q.grad).all()\n"
    )
    environment = {"PYTHONPATH": str(ROOT / "python"), "KDA_LIBRARY": str(BUILD / "lib")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def documents() -> list[Path]:
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [*top, *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(path: Path) -> set[str]:
    """Of headings, as the usual hosts make them, and those that stand in the text."""
    text = path.read_text()
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return made | set(re.findall(r'<a id="([\w-]+)">', text))


@pytest.mark.parametrize("path", documents(), ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), target


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in documents():
        for row in re.findall(r"`make ([a-z][^`\n]*)`|^make ([a-z].*)$", path.read_text(), re.M):
            for word in (row[0] or row[1]).split("#")[0].split():
                if "=" not in word and not word.startswith("-"):
                    assert word in targets, (path, row)


def test_first_screen_has_two_commands() -> None:
    """Clone aside, a newcomer reads two lines."""
    assert README.split("## ")[0].count("```") == 2
    assert len(re.findall(r"^make ", blocks("")[0], re.MULTILINE)) == 2


def test_plot_shows_the_table() -> None:
    spec = importlib.util.spec_from_file_location("plot_speed", ROOT / "scripts/plot_speed.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = module.rows(README)
    assert len(rows) >= 4
    drawn = re.findall(r">([^<>]+)</text>", (ROOT / "docs/images/speed.svg").read_text())
    for name, *values in rows:
        assert name in drawn
        for value in values:
            assert f"{value:g}" in drawn, (name, value)


def test_pictures_are_there() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\((docs/images/[^)]+)\)", README)
    assert pictures
    for name in pictures:
        assert (ROOT / name).stat().st_size < 2_000_000
