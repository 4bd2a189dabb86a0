"""What a person wants to know about a corpus folder, on stdout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kda.corpus.progress import human_bytes


def print_summary(manifest: dict[str, Any], folder: Path) -> None:
    """Files, evaluation sets and licences."""
    options = manifest.get("options", {})
    print(f"{folder}: preset {options.get('preset') or 'none (own input)'}")
    for name, row in sorted(manifest["files"].items()):
        documents = f", {row['documents']:,} documents" if "documents" in row else ""
        print(f"  {name:<24} {human_bytes(row['bytes']):>9}  {row['lines']:>9,} lines{documents}")
    for name, row in sorted(manifest.get("evaluation", {}).items()):
        strata = ", ".join(f"{key} {count}" for key, count in row["strata"].items())
        print(f"  eval/{name:<19} {row['pairs']:>5} pairs ({strata})")
    for name, row in sorted(manifest.get("frozen_evaluation", {}).items()):
        state = "" if row["complete"] else "; INCOMPLETE, not comparable with other builds"
        print(f"  frozen {name}: {row['found']} of {row['expected']} ids found{state}")
    if manifest.get("missing_packages"):
        print(f"  missing packages: {', '.join(manifest['missing_packages'])}")
    print("  licences (see the packages' copyright files):")
    for licence, names in manifest.get("licences", {}).items():
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        print(f"    {licence}: {shown}")


def print_details(manifest: dict[str, Any], folder: Path) -> None:
    """The summary, then one row per source and the counts of every cleaning rule."""
    print_summary(manifest, folder)
    print(f"  {'source':<22} {'kind':<6} {'pairs read':>10} {'kept':>8} {'documents':>10}  version")
    packages = manifest.get("packages", {})
    for name, row in manifest.get("sources", {}).items():
        read = sum(row.get("pairs_per_file", {}).values())
        kept = row.get("pairs", {}).get("kept", 0)
        documents = row.get("documents", {}).get("documents_kept", 0)
        note = ", ".join(
            f"{package} {packages[package]['version']}"
            for package in row.get("packages", [])
            if package in packages
        )
        if "held_out_for_evaluation" in row:
            note += f" (held out: {row['held_out_for_evaluation']})"
        print(f"  {name:<22} {row['kind']:<6} {read:>10,} {kept:>8,} {documents:>10,}  {note}")
    print("  counts:")
    for key, count in manifest.get("counts", {}).items():
        print(f"    {key:<32} {count:>10,}")
