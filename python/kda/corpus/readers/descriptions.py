"""Package descriptions from the distribution's own lists (Translation-en, Translation-zh_CN)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kda.corpus.clean import clean_pair, decode, monolingual_line
from kda.corpus.records import Document, Extract, Pair


def stanzas(text: str, field: str) -> Iterator[tuple[str, str, list[str]]]:
    """(package, md5 of the English description, [title, paragraph, ...])."""
    for stanza in text.split("\n\n"):
        head, _, body = stanza.partition(f"\n{field}: ")
        keys = dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", head, flags=re.MULTILINE))
        if not body or "Description-md5" not in keys:
            continue
        lines = body.split("\n")
        paragraphs, current = [lines[0]], ""
        for line in lines[1:]:
            # " ." separates paragraphs; two leading spaces mean verbatim text.
            if line == " ." or line.startswith("  ") or not line.startswith(" "):
                if current:
                    paragraphs.append(current)
                current = line.strip() if line.startswith("  ") else ""
            else:
                current = f"{current}\n{line.strip()}" if current else line.strip()
        if current:
            paragraphs.append(current)
        yield keys.get("Package", ""), keys["Description-md5"], paragraphs


def read(english: Mapping[str, bytes], chinese: Mapping[str, bytes]) -> Extract:
    """Pairs joined on the md5; English documents of descriptions that no Chinese one translates.

    The pairs serve evaluation only, so their English side must not enter the training text.
    """
    extract = Extract()
    translated: dict[str, list[str]] = {}
    for name in sorted(chinese):
        for _, digest, paragraphs in stanzas(decode(chinese[name], name), "Description-zh_CN"):
            translated.setdefault(digest, paragraphs)
    seen: set[str] = set()
    for name in sorted(english):
        for _, digest, paragraphs in stanzas(decode(english[name], name), "Description-en"):
            if digest in seen:
                continue
            seen.add(digest)
            extract.counts["descriptions"] += 1
            if digest in translated:
                _join(extract, paragraphs, translated[digest])
                continue
            lines = [x for part in paragraphs if (x := monolingual_line(part, "en")) is not None]
            if lines:
                extract.documents.append(Document("en", tuple(lines), "Translation-en"))
    return extract


def _join(extract: Extract, english: list[str], chinese: list[str]) -> None:
    if len(english) != len(chinese):
        extract.counts["different_structure"] += 1
        return
    for en, zh in zip(english, chinese, strict=True):
        cleaned = clean_pair(en, zh)
        if isinstance(cleaned, str):
            extract.counts[cleaned] += 1
        else:
            # Not the list's real file name: that one holds the mirror's address.
            extract.pairs.append(Pair(*cleaned, "Translation-zh_CN"))
