#!/usr/bin/env python3
"""One table from what the shards of cuda_stage_test wrote (KDA_STAGE_TABLE=FILE each).

scripts/device/stage_table.py FILE... > table.md
"""

from __future__ import annotations

import sys
from pathlib import Path

STAGES = (
    "gate", "gate_cumsum", "intra", "wy", "state", "output", "output_bwd", "state_bwd", "wy_bwd",
    "intra_bwd", "wy_bwd + intra_bwd", "gate_bwd", "fold",
)  # fmt: skip


def main() -> None:
    worst: dict[tuple[str, ...], list[str]] = {}
    head: list[str] = []
    for name in sys.argv[1:]:
        lines = Path(name).read_text().splitlines()
        head = lines[:2]
        for line in lines[2:]:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            key = tuple(cells[:3])
            if key not in worst or float(cells[4]) > float(worst[key][4]):
                worst[key] = cells
    rows = sorted(worst.values(), key=lambda c: (STAGES.index(c[0].strip("`")), c[1], c[2]))
    print(*head, sep="\n")
    for cells in rows:
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
