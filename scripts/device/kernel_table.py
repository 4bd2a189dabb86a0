#!/usr/bin/env python3
"""Registers, spills, shared memory and occupancy of the CUDA kernels, as a Markdown table.

    scripts/device/build_cuda.sh OBJECTS OUT -Xptxas -v 2> ptxas.log
    ncu --section LaunchStats --section Occupancy --csv --page raw PROGRAM > ncu.csv
    scripts/device/kernel_table.py ptxas.log ncu.csv

The compiler knows registers and spills; threads, dynamic shared memory and the occupancy that
follows are those of a launch, so kernels that PROGRAM did not launch have no such columns.
"""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from pathlib import Path

ENTRY = re.compile(r"Compiling entry function '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


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


def compiled(log: str) -> dict[str, tuple[int, int, int]]:
    """Name to registers and bytes of spill stores and loads."""
    found: dict[str, tuple[int, int, int]] = {}
    mangled, spills = "", (0, 0)
    rows: list[tuple[str, int, int, int]] = []
    for line in log.splitlines():
        if match := ENTRY.search(line):
            mangled, spills = match[1], (0, 0)
        elif mangled and (match := SPILLS.search(line)):
            spills = int(match[1]), int(match[2])
        elif mangled and (match := REGISTERS.search(line)):
            rows.append((mangled, int(match[1]), *spills))
            mangled = ""
    names = subprocess.run(
        ["c++filt"], input="\n".join(row[0] for row in rows), capture_output=True, text=True,
        check=True,
    ).stdout.split("\n")  # fmt: skip
    for name, (_, registers, stores, loads) in zip(names, rows, strict=False):
        found[short(name)] = registers, stores, loads
    return found


def launched(text: str) -> dict[str, tuple[str, str, str]]:
    """Name to threads per block, KiB of shared memory, occupancy in percent."""
    start = text.find('"ID"')
    if start < 0:
        return {}
    found = {}
    for row in csv.DictReader(io.StringIO(text[start:])):
        if not row["ID"]:
            continue  # the row of units
        shared = sum(
            int(row[f"launch__shared_mem_per_block_{kind}"].replace(",", ""))
            for kind in ("dynamic", "static")
        )
        found[short(row["Kernel Name"])] = (
            row["launch__block_size"].replace(",", ""),
            f"{shared / 1024:.1f}",
            row["sm__maximum_warps_per_active_cycle_pct"],
        )
    return found


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    functions = compiled(Path(sys.argv[1]).read_text())
    launches = launched(Path(sys.argv[2]).read_text())
    print(
        "| kernel | registers | spilled bytes, stores + loads | threads | shared KiB | occupancy % |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for name, (registers, stores, loads) in sorted(functions.items()):
        spilled = f"{stores} + {loads}" if stores or loads else "0"
        threads, shared, occupancy = launches.get(name, ("", "", ""))
        print(f"| `{name}` | {registers} | {spilled} | {threads} | {shared} | {occupancy} |")


if __name__ == "__main__":
    main()
