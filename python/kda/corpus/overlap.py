"""Overlap between training text and evaluation text: English 8-grams, Chinese 13-grams."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

EN_GRAM, ZH_GRAM = 8, 13

_EN_TOKEN_RE = re.compile(r"[a-z0-9]+")
_ZH_DROP_RE = re.compile(r"[\W_]+")


def tokens(text: str, lang: str) -> Sequence[str]:
    """What n-grams count: English words, Chinese characters; case and punctuation ignored."""
    if lang == "en":
        return _EN_TOKEN_RE.findall(text.lower())
    return _ZH_DROP_RE.sub("", text.lower())


def grams(text: str, lang: str) -> Iterator[str]:
    """n-grams of ``text``; a shorter text is one gram of its own, marked as whole."""
    return _grams(tokens(text, lang), lang)


def _grams(parts: Sequence[str], lang: str) -> Iterator[str]:
    size, glue = (EN_GRAM, " ") if lang == "en" else (ZH_GRAM, "")
    if len(parts) < size:
        if parts:
            yield "=" + glue.join(parts)
        return
    for start in range(len(parts) - size + 1):
        part = parts[start : start + size]
        yield part if isinstance(part, str) else glue.join(part)


class OverlapIndex:
    """Finds texts that share an n-gram with any protected pair.

    A protected text shorter than the n-gram only matches a text that equals it as a whole.
    """

    def __init__(self, protected: Iterable[tuple[str, str]]) -> None:
        self._owners: dict[str, dict[str, list[int]]] = {
            "en": defaultdict(list),
            "zh": defaultdict(list),
        }
        for number, (en, zh) in enumerate(protected):
            for lang, text in (("en", en), ("zh", zh)):
                for gram in grams(text, lang):
                    self._owners[lang][gram].append(number)
        # Every English gram's longest word: a line without any of them needs no closer look.
        self._keywords = {
            max(gram.removeprefix("=").split(), key=len) for gram in self._owners["en"]
        }

    def hits(self, text: str, lang: str) -> bool:
        """Whether ``text`` touches any protected pair."""
        table = self._owners[lang]
        parts = tokens(text, lang)
        if not table or (lang == "en" and self._keywords.isdisjoint(parts)):
            return False
        return any(gram in table for gram in _grams(parts, lang))

    def owners(self, text: str, lang: str) -> set[int]:
        """Numbers of the protected pairs that ``text`` touches."""
        table = self._owners[lang]
        return {number for gram in grams(text, lang) if gram in table for number in table[gram]}
