"""Presets debian-small and debian-full: packages -> extracts -> output folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kda.corpus import evalset
from kda.corpus.apt import Apt, DebInfo
from kda.corpus.errors import CorpusError
from kda.corpus.evalset import EvalPair
from kda.corpus.extract import extract_source
from kda.corpus.parallel import bounded_map
from kda.corpus.progress import Progress, warn
from kda.corpus.readers import descriptions
from kda.corpus.recipes import DESCRIPTION_SOURCE, Source, alternatives, sources_of
from kda.corpus.records import Extract


@dataclass
class Collected:
    """All extracts of a preset, in order of precedence, and where they came from."""

    extracts: list[tuple[Source, Extract]] = field(default_factory=list)
    packages: dict[str, DebInfo] = field(default_factory=dict)
    licences: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def _extract(job: tuple[Source, dict[str, Path]]) -> tuple[Extract, dict[str, str]]:
    return extract_source(*job)


def collect(preset: str, cache: Path, *, jobs: int, refresh: bool, quiet: bool) -> Collected:
    """Download (or find in the cache) and read every source of ``preset``."""
    sources = sources_of(preset)
    apt = Apt(cache, quiet=quiet)
    apt.update(refresh=refresh)
    known = apt.lookup(
        name for source in sources for entry in source.packages for name in alternatives(entry)
    )
    result = Collected()
    chosen: dict[str, list[str]] = {}
    for source in sources:
        chosen[source.name], missing = source.choose(known)
        result.missing.extend(missing)
    result.missing.sort()
    if result.missing:
        warn(f"packages not offered by this system's sources: {', '.join(result.missing)}")
    names = sorted({name for row in chosen.values() for name in row})
    if not names:
        raise CorpusError("none of the preset's packages is offered by this system's sources")
    result.packages = {name: known[name] for name in names}
    try:
        paths = apt.download(list(result.packages.values()))
    except CorpusError:
        if refresh:
            raise
        # The lists may be older than the archive: fetch them once more before giving up.
        return collect(preset, cache, jobs=jobs, refresh=True, quiet=quiet)
    work = [
        (source, {name: paths[name] for name in row})
        for source in sources
        if (row := chosen[source.name])
    ]
    total = sum(result.packages[name].size for _, row in work for name in row)
    progress = Progress("read", total, "bytes", quiet=quiet)
    for (source, used), (extract, licences) in zip(
        work, bounded_map(_extract, work, jobs), strict=True
    ):
        result.extracts.append((source, extract))
        result.licences.update(licences)
        progress.add(sum(result.packages[name].size for name in used))
    result.extracts.append((DESCRIPTION_SOURCE, _read_descriptions(apt)))
    pairs = sum(len(item.pairs) for _, item in result.extracts)
    progress.finish(f"{len(result.extracts)} sources, {pairs:,} pairs")
    return result


def _read_descriptions(apt: Apt) -> Extract:
    english: dict[str, bytes] = {}
    chinese: dict[str, bytes] = {}
    for language, path in apt.translations():
        if path.suffix in (".lz4", ".gz", ".xz", ".zst", ".bz2"):
            warn(f"{path.name}: compressed list is skipped")
            continue
        (chinese if language == "zh_CN" else english)[path.name] = path.read_bytes()
    return descriptions.read(english, chinese)


def evaluation(
    collected: Collected, *, allow_missing: bool
) -> tuple[dict[str, list[EvalPair]], dict[str, Any]]:
    """The frozen sets as this build finds them, and what the manifest says about them.

    Raises CorpusError when fewer than 99 % of a set's ids are there, unless ``allow_missing``.
    """
    candidates: dict[str, EvalPair] = {}
    for source, extract in collected.extracts:
        if source.stratum or source.in_domain:
            for pair in extract.pairs:
                candidates.setdefault(pair.id, EvalPair(pair, source.stratum or "", source.name))
    found: dict[str, list[EvalPair]] = {}
    report: dict[str, Any] = {}
    for name in evalset.SETS:
        frozen = evalset.load_frozen(name)
        rows = evalset.find(frozen, candidates)
        found[name] = rows
        share = len(rows) / len(frozen.ids) if frozen.ids else 1.0
        report[name] = {
            "expected": len(frozen.ids),
            "found": len(rows),
            "complete": share >= evalset.REQUIRED_SHARE,
            "versions_differ": {
                package: {
                    "frozen": version,
                    "here": collected.packages[package].version,
                }
                for package, version in sorted(frozen.versions.items())
                if package in collected.packages and collected.packages[package].version != version
            },
        }
        if share < evalset.REQUIRED_SHARE:
            text = (
                f"frozen evaluation set {name}: {len(rows)} of {len(frozen.ids)} ids found, "
                f"{evalset.REQUIRED_SHARE:.0%} are required"
            )
            if not allow_missing:
                raise CorpusError(f"{text}; --allow-missing-eval goes on and records it")
            warn(text)
    return found, report


def freeze(collected: Collected) -> dict[str, list[EvalPair]]:
    """Choose the evaluation sets anew and write their ids (developers only)."""
    held_out = [
        EvalPair(pair, source.stratum, source.name)
        for source, extract in collected.extracts
        if source.stratum
        for pair in extract.pairs
    ]
    in_domain = [
        EvalPair(pair, "indomain", source.name)
        for source, extract in collected.extracts
        if source.in_domain
        for pair in extract.pairs
    ]
    training = [
        pair
        for source, extract in collected.extracts
        if not source.stratum
        for pair in extract.pairs
    ]
    sets = evalset.choose(held_out, in_domain, training)
    for name, rows in sets.items():
        used = {row.source for row in rows}
        versions = {
            package: collected.packages[package].version
            for source, _ in collected.extracts
            if source.name in used
            for package in source.choose(collected.packages)[0]
        }
        evalset.write_frozen(name, rows, versions)
    return sets
