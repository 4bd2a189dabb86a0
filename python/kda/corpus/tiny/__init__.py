"""The offline corpus: text written for this project, free for any use (CC0-1.0).

``stories.txt``: prose, one sentence a line, English TAB Chinese. ``en.txt`` and ``zh.txt``: prose
of one language. ``mini.txt``: 100 sentence pairs for evaluation. ``generator``: simple sentences
and day stories from word lists.
"""

from __future__ import annotations

from pathlib import Path

from kda.corpus.evalset import EvalPair
from kda.corpus.records import Document, Pair
from kda.corpus.tiny.generator import sentences, stories

HELDOUT_ONE_IN = 20  # 1 in 100 of a few hundred documents would be too little text
LICENCE = "CC0-1.0"
FOLDER = Path(__file__).parent
_SENTENCES, _STORIES = 1600, 260
_TEST, _DEV = 100, 50


def _blocks(name: str) -> list[list[str]]:
    text = (FOLDER / name).read_text(encoding="utf-8")
    return [block.split("\n") for block in text.strip().split("\n\n")]


def _pairs(lines: list[str], name: str) -> list[Pair]:
    rows = (line.split("\t") for line in lines)
    return [Pair(en, zh, name) for en, zh in rows]


def mini() -> list[EvalPair]:
    """100 hand-written pairs, the set ``eval/mini`` of every preset."""
    lines = [line for block in _blocks("mini.txt") for line in block]
    return [EvalPair(pair, "mini", "tiny") for pair in _pairs(lines, "mini.txt")]


def _generated() -> list[Pair]:
    pairs = [Pair(en, zh, "generator") for en, zh in sentences(_SENTENCES)]
    return sorted(pairs, key=lambda pair: pair.id)


def evaluation() -> dict[str, list[EvalPair]]:
    """Held-out simple sentences: ``test`` and ``dev`` of the tiny preset."""
    rows = [EvalPair(pair, "simple", "tiny") for pair in _generated()[: _TEST + _DEV]]
    return {"test": rows[:_TEST], "dev": rows[_TEST:]}


def training() -> tuple[list[Pair], list[Document]]:
    """Pairs and documents for training, before evaluation text is kept out."""
    pairs: list[Pair] = []
    documents: list[Document] = []
    for block in _blocks("stories.txt"):
        rows = _pairs(block, "stories.txt")
        pairs.extend(rows)
        documents.append(Document("en", tuple(row.en for row in rows), "stories.txt"))
        documents.append(Document("zh", tuple(row.zh for row in rows), "stories.txt"))
    for lang in ("en", "zh"):
        name = f"{lang}.txt"
        documents.extend(Document(lang, tuple(block), name) for block in _blocks(name))
    pairs.extend(_generated()[_TEST + _DEV :])
    for en, zh in stories(_STORIES):
        documents.append(Document("en", (en,), "generator"))
        documents.append(Document("zh", (zh,), "generator"))
    return pairs, documents
