"""gettext catalogs: a bounds-checked .mo reader, pairs and documents from the messages."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping

from kda.corpus.clean import (
    clean_pair,
    count_han,
    decode,
    drop_lone_accelerator,
    monolingual_line,
)
from kda.corpus.errors import CorpusError
from kda.corpus.records import Document, Extract, Pair

_MAGIC = 0x950412DE
_MAX_MESSAGES = 2_000_000
_LINES_PER_DOCUMENT = 12
_OWN_DOCUMENT_BYTES = 240


def read_mo(data: bytes, name: str) -> Iterator[tuple[str, str]]:
    """(msgid, msgstr) of a .mo file: context cut, last plural form, untranslated ones skipped.

    Layout from the GNU gettext manual, "The Format of GNU MO Files": magic, revision, count,
    offset of the original table, offset of the translation table; a table row is length, offset.
    """
    if len(data) < 28:
        raise CorpusError(f"{name}: not a .mo file: {len(data)} bytes, the header has 28")
    order = "<" if struct.unpack_from("<I", data)[0] == _MAGIC else ">"
    magic, revision, count, originals, translations = struct.unpack_from(f"{order}5I", data)
    if magic != _MAGIC:
        raise CorpusError(f"{name}: not a .mo file: magic number {magic:#010x}")
    if revision >> 16 > 1:
        raise CorpusError(f"{name}: .mo revision {revision >> 16} is not supported (0, 1 are)")
    if count > _MAX_MESSAGES or max(originals, translations) + 8 * count > len(data):
        raise CorpusError(f"{name}: truncated .mo file: {count} messages do not fit")
    for index in range(count):
        msgid = _string(data, order, originals + 8 * index, name)
        msgstr = _string(data, order, translations + 8 * index, name)
        if not msgid or not msgstr:
            continue
        # Context stands before EOT; a plural message is "singular NUL plural".
        source = msgid.split(b"\x04", 1)[-1].split(b"\0")[-1]
        target = msgstr.split(b"\0")[-1]
        yield decode(source, name), decode(target, name)


def _string(data: bytes, order: str, row: int, name: str) -> bytes:
    length, offset = struct.unpack_from(f"{order}2I", data, row)
    if offset + length > len(data):
        raise CorpusError(
            f"{name}: truncated .mo file: a string ends at byte {offset + length} of {len(data)}"
        )
    return data[offset : offset + length]


def read(files: Mapping[str, bytes]) -> Extract:
    """Pairs and documents of every catalog in ``files``."""
    extract = Extract()
    for name in sorted(files):
        short: dict[str, list[str]] = {"zh": [], "en": []}
        for msgid, msgstr in read_mo(files[name], name):
            extract.counts["messages"] += 1
            if not count_han(msgstr):
                extract.counts["no_chinese"] += 1
                continue
            cleaned = clean_pair(msgid, msgstr)
            if isinstance(cleaned, str):
                extract.counts[cleaned] += 1
            else:
                extract.pairs.append(Pair(*cleaned, name))
            for lang, text in (("zh", msgstr), ("en", msgid)):
                _add_text(extract, short[lang], lang, text, name)
        for lang, lines in short.items():
            # Catalogs are sorted by English text; neighbours would be near-copies.
            lines.sort(key=lambda line: hashlib.sha256(line.encode()).digest())
            for start in range(0, len(lines), _LINES_PER_DOCUMENT):
                block = tuple(lines[start : start + _LINES_PER_DOCUMENT])
                extract.documents.append(Document(lang, block, name))
    return extract


def _add_text(extract: Extract, short: list[str], lang: str, text: str, name: str) -> None:
    lines = [
        line
        for paragraph in text.split("\n\n")
        if (line := monolingual_line(drop_lone_accelerator(paragraph), lang)) is not None
    ]
    # Long messages stand alone; short ones are grouped by the caller.
    own = len(lines) > 1 or any(len(line.encode()) >= _OWN_DOCUMENT_BYTES for line in lines)
    if own:
        extract.documents.append(Document(lang, tuple(lines), name))
    else:
        short.extend(lines)
