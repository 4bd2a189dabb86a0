"""Floors of an evaluation set: what a system scores that does not translate at all.

Copy the source; give the references in another order; give the target side of the training pair
whose source is nearest (TF-IDF cosine). A model translates only where it beats all three.
Needs sacrebleu and numpy.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kda.corpus.errors import CorpusError
from kda.corpus.progress import Progress

_DIRECTIONS = {"en2zh": ("en", "zh"), "zh2en": ("zh", "en")}


def terms(text: str, lang: str) -> list[str]:
    """English words, or pairs of neighbouring Chinese characters."""
    if lang == "en":
        return re.findall(r"[a-z0-9]+", text.lower())
    chars = re.sub(r"[\W_]+", "", text.lower())
    return [chars[i : i + 2] for i in range(len(chars) - 1)] or list(chars)


class TranslationMemory:
    """Nearest training source by cosine of (1 + log tf) * idf vectors; ties: the first pair."""

    def __init__(self, sources: Sequence[str], lang: str) -> None:
        import numpy as np

        self._np, self._lang, self._size = np, lang, len(sources)
        counts = [Counter(terms(text, lang)) for text in sources]
        frequency = Counter(term for row in counts for term in row)
        self._idf = {term: math.log(self._size / count) for term, count in frequency.items()}
        rows: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        for number, row in enumerate(counts):
            weights = {term: (1 + math.log(tf)) * self._idf[term] for term, tf in row.items()}
            norm = math.sqrt(sum(value * value for value in weights.values())) or 1.0
            for term, value in weights.items():
                rows[term].append((number, value / norm))
        self._postings = {
            term: (np.array([n for n, _ in row]), np.array([v for _, v in row], dtype=np.float32))
            for term, row in rows.items()
        }

    def nearest(self, text: str) -> int:
        scores = self._np.zeros(self._size, dtype=self._np.float32)
        for term, tf in Counter(terms(text, self._lang)).items():
            if term in self._postings:
                numbers, values = self._postings[term]
                scores[numbers] += values * ((1 + math.log(tf)) * self._idf[term])
        return int(scores.argmax())


def training_pairs(folder: Path) -> list[tuple[str, str]]:
    """Distinct (en, zh) of sft.train.jsonl, in file order."""
    found: dict[tuple[str, str], None] = {}
    with (folder / "sft.train.jsonl").open(encoding="utf-8") as stream:
        for line in stream:
            row = json.loads(line)
            forward = row["direction"] == "en2zh"
            found[(row["src"], row["tgt"]) if forward else (row["tgt"], row["src"])] = None
    return list(found)


def _scores(hypotheses: Sequence[str], references: Sequence[str], lang: str) -> dict[str, Any]:
    from sacrebleu import BLEU, CHRF

    bleu = BLEU(tokenize="zh" if lang == "zh" else "13a")
    chrf = CHRF()
    return {
        "bleu": round(bleu.corpus_score(hypotheses, [references]).score, 2),
        "chrf": round(chrf.corpus_score(hypotheses, [references]).score, 2),
        "signatures": [str(bleu.get_signature()), str(chrf.get_signature())],
    }


def floors(folder: Path, names: Iterable[str]) -> list[dict[str, Any]]:
    """One row per set, direction and system. Raises CorpusError when a file is missing."""
    try:
        import sacrebleu  # noqa: F401
    except ImportError as error:
        raise CorpusError("floors: sacrebleu is not installed; pip install sacrebleu") from error
    rows: list[dict[str, Any]] = []
    pairs = training_pairs(folder)
    sets: dict[str, dict[str, list[str]]] = {}
    for name in names:
        texts: dict[str, list[str]] = {}
        for lang in ("en", "zh"):
            path = folder / "eval" / f"{name}.{lang}"
            try:
                texts[lang] = path.read_text(encoding="utf-8").splitlines()
            except OSError as error:
                raise CorpusError(f"{path}: {error.strerror}") from error
        sets[name] = texts
    for direction, (source, target) in _DIRECTIONS.items():
        side = 0 if source == "en" else 1
        memory = TranslationMemory([pair[side] for pair in pairs], source)
        for name, texts in sets.items():
            progress = Progress(f"nearest pair, {name} {direction}", len(texts[source]), "lines")
            nearest: list[str] = []
            for text in texts[source]:
                nearest.append(pairs[memory.nearest(text)][1 - side])
                progress.add()
            half = len(texts[target]) // 2
            systems = {
                "copy": texts[source],
                "shuffled": texts[target][half:] + texts[target][:half],
                "nearest": nearest,
            }
            for system, hypotheses in systems.items():
                row = {"set": name, "direction": direction, "system": system}
                rows.append({**row, **_scores(hypotheses, texts[target], target)})
    return rows
