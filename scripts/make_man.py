#!/usr/bin/env python3
"""Writes the manual page kda(1) from the help texts of a built program.

scripts/make_man.py path/to/kda > kda.1
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

#: headings from which on a help text is prose and examples, shown as it stands
FOOTERS = ("Examples:", "Start here:")
HEADING = re.compile(r"^(\S[^:]*):$")
ITEM = re.compile(r"^ {2}(\S.*?)(?: {2,}(\S.*))?$")
VERB = re.compile(r"^ {2}([a-z][a-z-]*) {2,}\S")


def run(program: str, *words: str) -> str:
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "90"}
    done = subprocess.run(
        [program, *words], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode != 0:
        raise SystemExit(f"make_man: {program} {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.replace(os.path.expanduser("~") + "/", "~/")


def escaped(text: str) -> str:
    """Text that troff shows as it is, hyphens included."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def verbatim(lines: list[str]) -> list[str]:
    return [".nf", *(escaped(line) for line in lines), ".fi"]


def verbs_below(text: str) -> list[str]:
    """Names under the heading of commands."""
    if text.startswith("usage: "):  # a Python tool, which lists its verbs as a positional argument
        block = re.search(r"^positional arguments:\n((?:  .*\n)+)", text, re.MULTILINE)
        return (
            re.findall(r"^    ([a-z][a-z-]*)(?:  |$)", block.group(1), re.MULTILINE)
            if block
            else []
        )
    names: list[str] = []
    inside = False
    for line in text.splitlines():
        if HEADING.match(line):
            inside = line in ("Commands:", "Subcommands:")
        elif inside and (found := VERB.match(line)):
            names.append(found.group(1))
    return names


def items(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Pairs of name and description; a description may start on the name's line or below it."""
    name, about = "", ""
    for line in lines:
        if not line.startswith("      ") and (found := ITEM.match(line)):
            if name:
                yield name, about
            name, about = found.group(1), found.group(2) or ""
        else:
            about = f"{about} {line.strip()}".strip()
    if name:
        yield name, about


def body(text: str, root_footer: str, *, with_verbs: bool) -> list[str]:
    """One help text without its footer: paragraphs, then a list per heading."""
    lines = text.removesuffix(root_footer).splitlines()
    if lines and lines[0].startswith("usage: "):  # of the Python tools: laid out already
        return verbatim(lines)
    end = next((i for i, line in enumerate(lines) if line in FOOTERS), len(lines))
    out: list[str] = []
    heading, block = "", []

    def flush() -> None:
        if heading in ("Commands", "Subcommands") and not with_verbs:
            return
        listed = [item for item in items(block) if with_verbs or item[0] != "-h,--help"]
        if listed:
            out.extend([".PP", f"\\fB{escaped(heading.replace('Subcommands', 'Commands'))}\\fR"])
        for name, about in listed:
            out.extend([".TP", f"\\fB{escaped(name)}\\fR", escaped(about)])

    for line in lines[:end]:
        if found := HEADING.match(line):
            flush()
            heading, block = found.group(1), []
        elif heading:
            if line.strip():
                block.append(line)
        elif line.startswith("Usage: "):
            out.extend([".PP", f"\\fI{escaped(line.removeprefix('Usage: '))}\\fR"])
        elif line.strip():
            out.extend([".PP", escaped(line)])
    flush()
    if end < len(lines):
        out.extend(
            [".PP", f"\\fB{escaped(lines[end].rstrip(':'))}\\fR", *verbatim(lines[end + 1 :])]
        )
    return out


def verb_sections(program: str, words: list[str], root_footer: str) -> Iterator[str]:
    text = run(program, *words, "--help")
    yield f'.SS "{escaped(" ".join(["kda", *words]))}"'
    yield from body(text, root_footer, with_verbs=False)
    for name in verbs_below(text):
        yield from verb_sections(program, [*words, name], root_footer)


def page(program: str) -> str:
    text = run(program, "--help")
    version = run(program, "--version").split()[1]
    footer = text[text.index(FOOTERS[1]) :]
    out = [
        f'.TH KDA 1 "" "kda {escaped(version)}" "User Commands"',
        ".SH NAME",
        f"kda \\- {escaped(text.splitlines()[0])}",
        ".SH SYNOPSIS",
        ".B kda",
        "\\fICOMMAND\\fR [\\fIOPTIONS\\fR]",
        ".SH DESCRIPTION",
        *body(text.removesuffix(footer), "\n", with_verbs=True)[4:],
        ".SH COMMANDS",
    ]
    for name in verbs_below(text):
        out.extend(verb_sections(program, [name], footer))
    out.extend([".SH EXAMPLES AND EXIT CODES", *verbatim(footer.splitlines())])
    out.extend(
        [".SH SEE ALSO", "The documents in share/doc/kda and in the folder docs of the source."]
    )
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__.strip())
    sys.stdout.write(page(sys.argv[1]))
