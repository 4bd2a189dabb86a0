"""Tab completion as the shells themselves answer: KDA_PROGRAM names the program."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

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


def test_another_shell_is_refused() -> None:
    done = subprocess.run([PROGRAM, "completion", "csh"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "shell: expected bash, zsh or fish, got 'csh'" in done.stderr
    assert done.stdout == ""
