"""What readers hand to the assembler: parallel pairs and monolingual documents."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple


class Pair(NamedTuple):
    """One English sentence or paragraph and its Chinese counterpart, already cleaned."""

    en: str
    zh: str
    file: str

    @property
    def id(self) -> str:
        """sha256 of ``en<TAB>zh`` (hex): the name by which evaluation pairs are frozen."""
        return hashlib.sha256(f"{self.en}\t{self.zh}".encode()).hexdigest()


class Document(NamedTuple):
    """Consecutive lines of one language; ``lang`` is ``zh`` or ``en``."""

    lang: str
    lines: tuple[str, ...]
    file: str

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@dataclass
class Extract:
    """Everything one source gave, with the counts that go into the manifest."""

    pairs: list[Pair] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def pairs_per_file(self) -> dict[str, int]:
        return dict(sorted(Counter(pair.file for pair in self.pairs).items()))


def document_hash(text: str) -> bytes:
    """Order and hold-out of documents depend on this and on nothing else."""
    return hashlib.sha256(text.encode()).digest()
