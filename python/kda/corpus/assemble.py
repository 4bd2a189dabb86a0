"""From extracted pairs and documents to the files of the output folder.

Order of things: find the evaluation pairs, keep every training pair and line away from them,
remove duplicates, hold out 1 % of the documents, write everything ordered by hash.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kda.corpus.clean import dedupe_key, english_words, split_long
from kda.corpus.evalset import EvalPair
from kda.corpus.output import DocumentSink, sft_row, write_lines
from kda.corpus.overlap import OverlapIndex
from kda.corpus.recipes import UI
from kda.corpus.records import Document, Pair, document_hash

HELDOUT_ONE_IN = 100
NEAR_DUPLICATE_CAP = 40


@dataclass
class TrainPair:
    """A training pair with the directions to write and how often (prose counts more)."""

    pair: Pair
    copies: int = 1
    directions: tuple[str, ...] = ("en2zh", "zh2en")


@dataclass
class Assembler:
    """Accumulates one build. ``protected`` are all evaluation pairs of the build.

    One document in ``heldout_one_in``, chosen by its hash, goes to heldout.txt.
    """

    folder: Path
    protected: Sequence[Pair]
    heldout_one_in: int = HELDOUT_ONE_IN
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._index = OverlapIndex((pair.en, pair.zh) for pair in self.protected)
        self._eval_ids = {pair.id for pair in self.protected}
        self._sentences: set[bytes] = set()
        self._lines: set[bytes] = set()
        self._documents: set[bytes] = set()
        self._sft: list[tuple[bytes, str]] = []
        self._sinks = {
            name: DocumentSink(self.folder, name)
            for name in ("pretrain.zh.txt", "pretrain.en.txt", "heldout.txt")
        }

    def add_pairs(self, source: str, kind: str, pairs: Iterable[TrainPair]) -> Counter[str]:
        """Add training pairs of one source; returns its counts by outcome."""
        outcome: Counter[str] = Counter()
        openings: Counter[tuple[str, ...]] = Counter()
        for row in pairs:
            reason = self._refuse(row.pair, kind, openings)
            outcome[reason or "kept"] += 1
            if reason:
                continue
            for direction in row.directions:
                src, tgt = (
                    (row.pair.en, row.pair.zh)
                    if direction == "en2zh"
                    else (row.pair.zh, row.pair.en)
                )
                text = sft_row(src, tgt, direction)
                for copy in range(row.copies):
                    self._sft.append((hashlib.sha256(f"{copy}\t{text}".encode()).digest(), text))
        self.counts.update({f"pairs_{key}": count for key, count in outcome.items()})
        return outcome

    def _refuse(self, pair: Pair, kind: str, openings: Counter[tuple[str, ...]]) -> str | None:
        if pair.id in self._eval_ids:
            return "in_evaluation"
        key = _digest(dedupe_key(pair.en) or pair.en)
        if key in self._sentences:
            return "duplicate"
        if self._index.hits(pair.en, "en") or self._index.hits(pair.zh, "zh"):
            return "overlaps_evaluation"
        if kind == UI:
            # Message catalogs repeat a frame ("failed to get ..."); keep a bounded number of each.
            words = english_words(pair.en.lower())
            frames = [("head", *words[:3]), ("tail", *words[-3:])]
            if any(openings[frame] >= NEAR_DUPLICATE_CAP for frame in frames):
                return "near_duplicate"
            openings.update(frames)
        self._sentences.add(key)
        return None

    def add_documents(
        self,
        documents: Iterable[Document],
        *,
        line_key: Callable[[str], str] | None = str,
    ) -> Counter[str]:
        """Add pretraining documents; returns counts of lines and documents by outcome.

        A line whose ``line_key`` was seen before goes; None keeps repeated lines.
        """
        outcome: Counter[str] = Counter()
        for document in documents:
            kept: list[str] = []
            for line in document.lines:
                if self._index.hits(line, document.lang):
                    outcome["lines_overlap_evaluation"] += 1
                    continue
                if line_key is not None:
                    key = _digest(line_key(line))
                    if key in self._lines:
                        outcome["lines_duplicate"] += 1
                        continue
                    self._lines.add(key)
                kept.extend(split_long(line))
            if not kept:
                outcome["documents_empty"] += 1
                continue
            text = "\n".join(kept)
            digest = document_hash(text)
            if digest[:16] in self._documents:
                outcome["documents_duplicate"] += 1
                continue
            self._documents.add(digest[:16])
            if int.from_bytes(digest[:8], "big") % self.heldout_one_in == 0:
                self._sinks["heldout.txt"].add(text)
                outcome["documents_heldout"] += 1
            else:
                self._sinks[f"pretrain.{document.lang}.txt"].add(text)
                outcome["documents_kept"] += 1
        self.counts.update(outcome)
        return outcome

    def close(self, evaluation: Mapping[str, Sequence[EvalPair]]) -> None:
        """Write all files of the folder but the manifest."""
        for sink in self._sinks.values():
            sink.close()
        self._sft.sort()
        write_lines(self.folder / "sft.train.jsonl", (text for _, text in self._sft))
        for name, rows in sorted(evaluation.items()):
            for side, lines in (
                ("en", [row.pair.en for row in rows]),
                ("zh", [row.pair.zh for row in rows]),
                (
                    "meta",
                    [f"{row.pair.id}\t{row.stratum}\t{row.source}" for row in rows],
                ),
            ):
                write_lines(self.folder / "eval" / f"{name}.{side}", lines)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=12).digest()


def without_numbers(line: str) -> str:
    """Line with every word that has a digit replaced: 40 kernel versions are one sentence."""
    return re.sub(r"\S*\d\S*", "#", line)


def strata(rows: Sequence[EvalPair]) -> dict[str, int]:
    return dict(sorted(Counter(row.stratum for row in rows).items()))


def sorted_counts(counts: Counter[str]) -> dict[str, int]:
    return {key: counts[key] for key in sorted(counts) if counts[key]}
