#!/usr/bin/env python3
"""Registers, spills, shared memory and occupancy of the CUDA kernels, as a Markdown table.

    scripts/device/build_cuda.sh OBJECTS OUT -Xptxas -v 2> ptxas.log
    (launch_facts.cu says how it is compiled) ./facts > facts.txt
    scripts/device/kernel_table.py ptxas.log facts.txt

The compiler knows registers, spills and static shared memory; threads and dynamic shared memory are
those of the launches. Occupancy is what these leave of 64 warps on a multiprocessor of sm_90.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ENTRY = re.compile(r"Compiling entry function '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers(?:.*, (\d+) bytes smem)?")
#: of a multiprocessor; every block takes 1 KiB of shared memory for itself
WARPS, FILE, SHARED, RESERVED = 64, 65536, 233472, 1024


def short(name: str) -> str:
    """A demangled name without return type, namespaces and parameters; booleans as numbers."""
    name = re.sub(r"\(anonymous namespace\)::|\w+::", "", name.removeprefix("void "))
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            name = name[:at]
            break
    name = re.sub(r"\((?:bool|int|\w+)\)(?=[\w-])", "", name)
    return name.replace("true", "1").replace("false", "0").replace(" ", "")


def compiled(log: str) -> dict[str, tuple[int, int, int, int]]:
    """Name to registers, bytes of spill stores and loads, static shared memory."""
    mangled, spills = "", (0, 0)
    rows: list[tuple[str, int, int, int, int]] = []
    for line in log.splitlines():
        if match := ENTRY.search(line):
            mangled, spills = match[1], (0, 0)
        elif mangled and (match := SPILLS.search(line)):
            spills = int(match[1]), int(match[2])
        elif mangled and (match := REGISTERS.search(line)):
            rows.append((mangled, int(match[1]), *spills, int(match[2] or 0)))
            mangled = ""
    names = subprocess.run(
        ["c++filt"], input="\n".join(row[0] for row in rows), capture_output=True, text=True,
        check=True,
    ).stdout.split("\n")  # fmt: skip
    return {short(name): row[1:] for name, row in zip(names, rows, strict=False)}


def occupancy(registers: int, threads: int, shared: int) -> float:
    """Share of the warps that fit: registers come in units of 256 per warp, warps in fours."""
    warps = (threads + 31) // 32
    per_warp = (32 * registers + 255) // 256 * 256
    by_registers = FILE // per_warp // 4 * 4 // warps
    by_shared = SHARED // ((shared + RESERVED + 127) // 128 * 128)
    return min(WARPS // warps, by_registers, by_shared, 32) * warps / WARPS


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    facts = {}
    for line in Path(sys.argv[2]).read_text().splitlines():
        name, threads, dynamic = line.split()
        facts[name] = int(threads), int(dynamic)
    print(
        "| kernel | registers | spilled bytes, stores + loads | threads | shared KiB | occupancy |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    found = compiled(Path(sys.argv[1]).read_text())
    for name, (registers, stores, loads, static) in sorted(found.items()):
        spilled = f"{stores} + {loads}" if stores or loads else "0"
        launch = " | | "
        if name in facts:
            threads, dynamic = facts[name]
            share = occupancy(registers, threads, static + dynamic)
            launch = f" {threads} | {(static + dynamic) / 1024:.1f} | {share:.0%} "
        print(f"| `{name}` | {registers} | {spilled} |{launch}|")


if __name__ == "__main__":
    main()
