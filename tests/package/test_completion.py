"""Tab completion as the shells themselves answer: KDA_PROGRAM names the program."""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(os.environ["KDA_PROGRAM"])
SHELLS = ("bash", "zsh", "fish")
#: stand for the parts of zsh's completion system that need a terminal
ZSH_STUBS = """
compdef() { : }
_files() { print -- FILES }
_message() { print -- VALUE }
compadd() { shift; print -l -- "$@" }
_describe() { local list=${@[-1]}; for entry in ${(P)list}; do print -r -- "${entry%%:*}"; done }
"""


@functools.cache
def script(shell: str) -> str:
    done = subprocess.run(
        [PROGRAM, "completion", shell], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def ask(shell: str, *words: str) -> list[str]:
    """What the shell offers for the last of `words`, which are typed after `kda`."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    line = ["kda", *words]
    quoted = " ".join(f"'{word}'" for word in line)
    if shell == "bash":
        code = (
            f"{script('bash')}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(line) - 1}; _kda\n"
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        command = ["bash", "--norc", "-c", code]
    elif shell == "zsh":
        code = (
            f"{ZSH_STUBS}\n{script('zsh')}\nwords=({quoted}); CURRENT={len(line)}\n"
            f"PREFIX='{line[-1]}'; _kda"
        )
        command = ["zsh", "-f", "-c", code]
    else:
        code = f"{script('fish')}\ncomplete -C '{' '.join(line)}'"
        command = ["fish", "--no-config", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    offered = [row.split("\t")[0] for row in done.stdout.splitlines() if row]
    # zsh hands everything to its own matcher
    return [word for word in offered if word.startswith(line[-1]) or word in ("FILES", "VALUE")]


def verbs_of(*words: str) -> set[str]:
    """The commands that a help text lists."""
    text = subprocess.run(
        [PROGRAM, *words, "--help"], capture_output=True, text=True, check=True
    ).stdout
    block = re.search(r"^(?:Sub)?[Cc]ommands:\n((?:  .*\n)+)", text, re.MULTILINE)
    assert block is not None, text
    return {row.split()[0] for row in block.group(1).splitlines() if row[2] != " "}


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_are_those_of_the_help(shell: str) -> None:
    assert set(ask(shell, "")) >= verbs_of()
    assert set(ask(shell, "tokenizer", "")) >= verbs_of("tokenizer")
    assert ask(shell, "trai") == ["train"]
    assert ask(shell, "ckpt", "ver") == ["verify"]


@pytest.mark.parametrize("shell", SHELLS)
def test_options_belong_to_their_command(shell: str) -> None:
    help_text = subprocess.run(
        [PROGRAM, "train", "--help"], capture_output=True, text=True, check=True
    ).stdout
    wanted = set(re.findall(r"^  (?:-\w,)?(--[a-z0-9-]+)", help_text, re.MULTILINE))
    assert len(wanted) > 40
    assert set(ask(shell, "train", "--")) == wanted
    assert ask(shell, "train", "--data", "x", "--grad-") == ["--grad-accum"]
    assert ask(shell, "generate", "--grad-") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_values(shell: str) -> None:
    assert ask(shell, "train", "--dtype", "") == ["fp32", "bf16"] or shell == "fish"
    assert sorted(ask(shell, "train", "--dtype", "")) == ["bf16", "fp32"]
    assert "k3-toy" in ask(shell, "train", "--preset", "k3")
    assert ask(shell, "train", "--steps", "") in ([], ["VALUE"])
    if shell == "zsh":
        assert ask(shell, "generate", "--ckpt", "") == ["FILES"]


def test_value_behind_an_equals_sign_in_bash() -> None:
    assert ask("bash", "train", "--schedule", "=", "w") == ["wsd"]


def test_every_offered_word_is_accepted(tmp_path: Path) -> None:
    """The words of the completion are those of the parser."""

    def code(option: str, word: str) -> int:
        words = ["--data", "x", "--tokenizer", "x", "--steps", "2", "--out", str(tmp_path)]
        done = subprocess.run(
            [PROGRAM, "train", "--dump-config", *words, f"--{option}", word],
            capture_output=True, check=False,
        )  # fmt: skip
        return done.returncode

    for option in ("dtype", "optimizer", "schedule", "attnres"):
        words = ask("bash", "train", f"--{option}", "")
        assert len(words) >= 2, option
        assert {word: code(option, word) for word in words} == dict.fromkeys(words, 0)
        assert code(option, "nonsense") == 2, option


def python_options() -> dict[str, dict[str, tuple[str, ...] | None]]:
    """Of every verb that a Python tool parses: its options and their choices."""
    sys.path.insert(0, str(ROOT / "python"))
    from kda.corpus.cli import parser as corpus
    from kda.evaluation.cli import parser as evaluation
    from kda.monitor.cli import parser as monitor
    from kda.monitor.report.cli import parser as report
    from kda.monitor.sinks.swanlab import SwanLabSink
    from kda.monitor.sinks.wandb import WandbSink

    found: dict[str, dict[str, tuple[str, ...] | None]] = {}

    def walk(parser: argparse.ArgumentParser, path: str) -> None:
        options = found.setdefault(path, {})
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, child in action.choices.items():
                    walk(child, f"{path} {name}".strip())
            for name in action.option_strings:
                options[name] = tuple(action.choices) if action.choices else None

    walk(monitor("kda"), "monitor")
    walk(report("kda"), "report")
    walk(corpus("kda"), "data")
    walk(evaluation("kda"), "evaluation")
    found["export-flores"] = found["evaluation export-flores"]
    found["monitor swanlab"]["--mode"] = tuple(SwanLabSink.modes)
    found["monitor wandb"]["--mode"] = tuple(WandbSink.modes)
    for path in ("data", "data inspect"):  # the program's own
        del found[path]
    return {path: found[path] for path in found if not path.startswith("evaluation")}


@pytest.mark.parametrize("shell", SHELLS)
def test_words_of_python_tools_are_those_of_their_parsers(shell: str) -> None:
    verbs = python_options()
    assert len(verbs) == 10
    for path, options in verbs.items():
        words = path.split()
        assert words[-1] in ask(shell, *words[:-1], ""), path
        assert set(ask(shell, *words, "--")) == {name for name in options if name[:2] == "--"}, path
        for name, choices in options.items():
            if choices:
                assert sorted(ask(shell, *words, name, "")) == sorted(choices), (path, name)
    assert ask(shell, "monitor", "swa") == ["swanlab"]


def test_another_shell_is_refused() -> None:
    done = subprocess.run([PROGRAM, "completion", "csh"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "shell: expected bash, zsh or fish, got 'csh'" in done.stderr
    assert done.stdout == ""
