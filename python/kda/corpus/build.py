"""One build: gather sources, keep evaluation apart, write the folder and its manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kda.corpus import debian, tiny, user
from kda.corpus.assemble import (
    HELDOUT_ONE_IN,
    Assembler,
    TrainPair,
    sorted_counts,
    strata,
    without_numbers,
)
from kda.corpus.errors import CorpusError
from kda.corpus.evalset import EvalPair
from kda.corpus.output import FORMAT, Staging
from kda.corpus.parallel import bounded_map
from kda.corpus.progress import Progress, warn
from kda.corpus.recipes import DESCRIPTIONS, UI
from kda.corpus.records import Pair

TOOL_VERSION = 1
USER_EVAL_ONE_IN, USER_EVAL_MAX, USER_EVAL_MIN_PAIRS = 50, 1000, 200


@dataclass(frozen=True)
class BuildOptions:
    """Everything that a build depends on besides the sources themselves."""

    out: Path
    preset: str | None = None
    inputs: tuple[Path, ...] = ()
    cache: Path = Path("cache")
    jobs: int = 1
    prose_weight: int = 3
    allow_missing_eval: bool = False
    refresh: bool = False
    quiet: bool = False
    user: user.UserOptions = field(default_factory=user.UserOptions)


def build(options: BuildOptions) -> dict[str, Any]:
    """Build ``options.out`` and return its manifest.

    Raises UsageError for a request that cannot be meant, CorpusError when the job fails; the
    output folder is then as it was before.
    """
    inputs = user.find_inputs(options.inputs)
    with Staging(options.out) as staging:
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "tool": {"name": "kda.corpus", "version": TOOL_VERSION},
            "options": {
                "preset": options.preset,
                "inputs": [path.name for path in inputs],
                "prose_weight": options.prose_weight,
                "lang": options.user.lang,
                "text_column": options.user.text_column,
                "simplify": options.user.simplify,
            },
        }
        heldout_one_in = tiny.HELDOUT_ONE_IN if options.preset == "tiny" else HELDOUT_ONE_IN
        manifest["heldout_one_in"] = heldout_one_in
        evaluation: dict[str, list[EvalPair]] = {"mini": tiny.mini()}
        collected: debian.Collected | None = None
        if options.preset in ("debian-small", "debian-full"):
            collected = debian.collect(
                options.preset,
                options.cache,
                jobs=options.jobs,
                refresh=options.refresh,
                quiet=options.quiet,
            )
            found, report = debian.evaluation(collected, allow_missing=options.allow_missing_eval)
            evaluation.update(found)
            manifest["frozen_evaluation"] = report
        elif options.preset == "tiny":
            evaluation.update(tiny.evaluation())
        user_pairs = _user_evaluation(inputs, options, evaluation)
        assembler = Assembler(
            staging.path,
            [row.pair for rows in evaluation.values() for row in rows],
            heldout_one_in,
        )
        sources: dict[str, Any] = {}
        if collected:
            sources.update(_add_debian(assembler, collected, options))
            manifest["packages"] = _packages(collected)
            manifest["missing_packages"] = collected.missing
        elif options.preset == "tiny":
            sources["tiny"] = _add_tiny(assembler)
        if inputs:
            sources["input"] = _add_inputs(assembler, inputs, options, user_pairs)
        assembler.close(evaluation)
        if not any(assembler.counts[key] for key in ("documents_kept", "pairs_kept")):
            raise CorpusError("no usable text found; nothing was written")
        manifest["sources"] = sources
        manifest["counts"] = sorted_counts(assembler.counts)
        manifest["evaluation"] = {
            name: {"pairs": len(rows), "strata": strata(rows)}
            for name, rows in sorted(evaluation.items())
        }
        manifest["licences"] = _licences(sources)
        staging.commit(manifest)
        return manifest


def _add_debian(
    assembler: Assembler, collected: debian.Collected, options: BuildOptions
) -> dict[str, Any]:
    sources: dict[str, Any] = {}
    sizes = [len(extract.pairs) + len(extract.documents) for _, extract in collected.extracts]
    progress = Progress("assemble", sum(sizes), "records", quiet=options.quiet)
    for (source, extract), size in zip(collected.extracts, sizes, strict=True):
        row: dict[str, Any] = {
            "kind": source.kind,
            "licence": source.licence,
            "packages": source.choose(collected.packages)[0],
            "extracted": sorted_counts(extract.counts),
            "pairs_per_file": extract.pairs_per_file(),
        }
        if source.stratum:
            row["held_out_for_evaluation"] = source.stratum
        else:
            copies = 1 if source.kind == UI else options.prose_weight
            outcome = assembler.add_pairs(
                source.name,
                source.kind,
                (TrainPair(pair, copies) for pair in extract.pairs),
            )
            row["pairs"] = sorted_counts(outcome)
        if not source.stratum or source.kind == DESCRIPTIONS:
            key = without_numbers if source.kind == DESCRIPTIONS else str
            row["documents"] = sorted_counts(
                assembler.add_documents(extract.documents, line_key=key)
            )
        sources[source.name] = row
        progress.add(size)
    progress.finish(f"{assembler.counts['pairs_kept']:,} training pairs")
    return sources


def _packages(collected: debian.Collected) -> dict[str, Any]:
    return {
        name: {
            "version": info.version,
            "architecture": info.architecture,
            "bytes": info.size,
            "sha256": info.sha256,
            "declared_licence": collected.licences.get(name),
        }
        for name, info in sorted(collected.packages.items())
    }


def _add_tiny(assembler: Assembler) -> dict[str, Any]:
    pairs, documents = tiny.training()
    outcome = assembler.add_pairs("tiny", "prose", (TrainPair(pair) for pair in pairs))
    return {
        "kind": "prose",
        "licence": tiny.LICENCE,
        "pairs": sorted_counts(outcome),
        "documents": sorted_counts(assembler.add_documents(documents)),
    }


def _clean_inputs(
    inputs: Sequence[Path], options: BuildOptions, step: str
) -> Iterator[user.CleanBatch]:
    progress = Progress(
        step, sum(path.stat().st_size for path in inputs), "bytes", quiet=options.quiet
    )
    jobs = (
        (batch, options.user) for path in inputs for batch in user.read_batches(path, options.user)
    )
    for batch in bounded_map(user.clean_batch, jobs, options.jobs):
        yield batch
        progress.add(batch.size)
    progress.finish()


def _user_evaluation(
    inputs: Sequence[Path], options: BuildOptions, evaluation: dict[str, list[EvalPair]]
) -> bool:
    """Hold out 1 in 50 of the user's pairs as user_dev and user_test; tells if there are pairs."""
    paired = [path for path in inputs if path.suffix.lower() != ".txt"]
    unique: dict[str, Pair] = {}
    total = 0
    if not paired:
        return False
    for batch in _clean_inputs(paired, options, "look for pairs"):
        total += len(batch.pairs)
        for row in batch.pairs:
            if int(row.pair.id, 16) % USER_EVAL_ONE_IN == 0:
                unique.setdefault(row.pair.id, row.pair)
    if total >= USER_EVAL_MIN_PAIRS:
        rows = [EvalPair(unique[ident], "user", unique[ident].file) for ident in sorted(unique)]
        rows = rows[: 2 * USER_EVAL_MAX]
        names = ("user_test", "user_dev") if options.preset else ("test", "dev")
        evaluation[names[0]], evaluation[names[1]] = rows[0::2], rows[1::2]
    return total > 0


def _add_inputs(
    assembler: Assembler,
    inputs: Sequence[Path],
    options: BuildOptions,
    user_pairs: bool,
) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for batch in _clean_inputs(inputs, options, "read input"):
        counts.update(batch.counts)
        counts.update(assembler.add_documents(batch.documents, line_key=None))
        if user_pairs:
            rows = (TrainPair(row.pair, 1, (row.direction,)) for row in batch.pairs)
            counts.update(
                {
                    f"pairs_{key}": count
                    for key, count in assembler.add_pairs("input", "user", rows).items()
                }
            )
    for key in ("lines_broken_bytes", "pairs_broken_bytes"):
        if counts[key]:
            warn(f"input: {counts[key]} {key.split('_')[0]} with NUL or invalid UTF-8 dropped")
    return {
        "kind": "user",
        "licence": "the user's own text",
        "counts": sorted_counts(counts),
    }


def _licences(sources: dict[str, Any]) -> dict[str, list[str]]:
    summary: dict[str, list[str]] = {}
    for name, row in sources.items():
        summary.setdefault(row["licence"], []).append(name)
    return {licence: sorted(names) for licence, names in sorted(summary.items())}
