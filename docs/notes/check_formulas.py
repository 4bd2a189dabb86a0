#!/usr/bin/env python3
"""Evaluates every formula of the notes that bears a mark against float64 automatic differentiation.

Prints one line per equation; exit 1 when one differs by more than the limit. With --write the
table of the notes' appendix (data/checks.tex) is written too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

NOTES = Path(__file__).resolve().parent
sys.path.insert(0, str(NOTES))

from checks import layers, numerics, operator_backward, operator_forward  # noqa: E402, F401
from checks.registry import CHECKS, LIMIT  # noqa: E402


def largest_differences() -> dict[str, float]:
    torch.set_num_threads(1)
    return {label: check() for label, check in CHECKS.items()}


def number(value: float) -> str:
    """1.5e-16 as LaTeX."""
    if value == 0:
        return "0"
    digits, exponent = f"{value:.1e}".split("e")
    return rf"${digits}\cdot10^{{{int(exponent)}}}$"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write data/checks.tex")
    arguments = parser.parse_args()
    results = largest_differences()
    for label, value in results.items():
        print(f"{'ok    ' if value <= LIMIT else 'WRONG '} {value:8.1e}  {label}")
    if arguments.write:
        chapters = sorted((NOTES / "chapters").glob("*.tex"))
        text = "".join(chapter.read_text(encoding="utf-8") for chapter in chapters)
        rows = [
            rf"\eqref{{{label}}} & {label.removeprefix('eq:')} & {number(results[label])} \\"
            for label in sorted(results, key=lambda label: text.find(rf"\checked{{{label}}}"))
        ]
        (NOTES / "data" / "checks.tex").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return 0 if all(value <= LIMIT for value in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
