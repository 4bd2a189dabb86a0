"""Plain-text sources: fortune files, keyed game descriptions, man page sources, dictionaries."""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Iterable, Mapping

from kda.corpus.clean import clean_pair, count_han, decode, monolingual_line
from kda.corpus.errors import CorpusError
from kda.corpus.records import Document, Extract, Pair

_WRAPPED_COLUMNS = 66
_MAX_UNPACKED = 128_000_000


def gunzip(data: bytes, name: str) -> bytes:
    """Unpack .gz or dictzip data with a limit on the unpacked size."""
    out = b""
    try:
        while True:
            worker = zlib.decompressobj(wbits=31)
            out += worker.decompress(data, max(_MAX_UNPACKED - len(out), 1))
            if worker.unconsumed_tail:
                raise CorpusError(f"{name}: unpacks to more than {_MAX_UNPACKED} bytes")
            if not worker.eof:
                raise CorpusError(f"{name}: bad gzip data: ends too early")
            data = worker.unused_data
            if not data:
                return out
    except zlib.error as error:
        raise CorpusError(f"{name}: bad gzip data: {error}") from error


def columns(text: str) -> int:
    """Display width on a terminal: wide characters count two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def unwrap(lines: Iterable[str], width: int = _WRAPPED_COLUMNS) -> list[str]:
    """Join lines that were broken at the terminal's width; shorter lines end where they end."""
    joined: list[str] = []
    previous_full = False
    for line in lines:
        text = line.rstrip()
        if not text.strip():
            previous_full = False
            continue
        if previous_full and joined and not text.startswith(("  ", "\t", "*", "-")):
            joined[-1] = f"{joined[-1]} {text.strip()}"
        else:
            joined.append(text.strip())
        previous_full = columns(text) >= width
    return joined


def _document(extract: Extract, lang: str, lines: Iterable[str], name: str) -> None:
    kept = [line for text in lines if (line := monolingual_line(text, lang)) is not None]
    if kept:
        extract.documents.append(Document(lang, tuple(kept), name))


def read_fortunes(files: Mapping[str, bytes], lang: str) -> Extract:
    """Entries between lines that hold one ``%``; each becomes a document."""
    extract = Extract()
    for name in sorted(files):
        for entry in re.split(r"^%\s*$", decode(files[name], name), flags=re.MULTILINE):
            extract.counts["entries"] += 1
            lines = [line for line in entry.split("\n") if "://" not in line]
            _document(extract, lang, unwrap(lines), name)
    return extract


def _keyed(text: str) -> dict[str, list[str]]:
    """``%%%%`` separated entries: a key line, an empty line, paragraphs."""
    entries: dict[str, list[str]] = {}
    for entry in text.split("%%%%"):
        lines = [line for line in entry.strip().split("\n") if not line.startswith("#")]
        key = lines[0].strip() if lines else ""
        paragraphs = [
            re.sub(r"\s*\n\s*", "\n", part).strip()
            for part in re.split(r"\n\s*\n", "\n".join(lines[1:]))
        ]
        if key and any(paragraphs):
            entries.setdefault(key, [part for part in paragraphs if part])
    return entries


def read_crawl(files: Mapping[str, bytes]) -> Extract:
    """Dungeon Crawl descriptions: the key is English in both languages."""
    extract = Extract()
    for name in sorted(files):
        if "/zh/" not in name or name.replace("/zh/", "/") not in files:
            continue
        english_name = name.replace("/zh/", "/")
        english = _keyed(decode(files[english_name], english_name))
        chinese = _keyed(decode(files[name], name))
        for key, paragraphs in chinese.items():
            twins = english.get(key, [])
            _document(extract, "zh", paragraphs, name)
            if len(twins) != len(paragraphs):
                extract.counts["different_structure"] += 1
                continue
            for en, zh in zip(twins, paragraphs, strict=True):
                cleaned = clean_pair(en, zh) if count_han(zh) else "no_chinese"
                if isinstance(cleaned, str):
                    extract.counts[cleaned] += 1
                else:
                    extract.pairs.append(Pair(*cleaned, name))
        for paragraphs in english.values():
            _document(extract, "en", paragraphs, english_name)
    return extract


_FONT_RE = re.compile(r"\\f(?:\(..|\[[^\]]*\]|.)")
_SIZE_RE = re.compile(r"\\s[+-]?\d")
_ESCAPES = {
    r"\-": "-",
    r"\ ": " ",
    r"\&": "",
    r"\e": "\\",
    r"\(bu": "",
    r"\(co": "©",
    r"\|": "",
    r"\,": "",
    r"\/": "",
}
_ESCAPE_RE = re.compile(
    "|".join(re.escape(key) for key in _ESCAPES) + r"|\\\((?:..)|\\\*\(..|\\\*."
)
_TEXT_MACROS = {"B", "I", "R", "BR", "RB", "BI", "IB", "IR", "RI", "SM", "SB"}
_BREAK_MACROS = {"SH", "SS", "PP", "LP", "P", "TP", "IP", "HP", "RS", "RE", "TH", "TQ"}
_BREAK_MACROS |= {"br", "sp", "in", "ti", "ce"}


def man_paragraphs(source: str) -> list[str]:
    """Paragraphs of a man(7) page; unfilled text (code) is left out, mdoc(7) gives nothing."""
    paragraphs: list[str] = []
    current: list[str] = []
    unfilled = False

    def end() -> None:
        if current:
            paragraphs.append("\n".join(current))
            current.clear()

    for line in source.split("\n"):
        if line.startswith((".", "'")):
            parts = line[1:].strip().split(None, 1)
            macro = parts[0] if parts else ""
            if macro == "Dd":
                return []
            if macro in ("nf", "EX", "TS"):
                unfilled = True
            elif macro in ("fi", "EE", "TE"):
                unfilled = False
            elif macro in _TEXT_MACROS and len(parts) > 1 and not unfilled:
                glue = "" if len(macro) == 2 and macro not in ("SM", "SB") else " "
                words = re.findall(r'"((?:[^"]|"")*)"|(\S+)', parts[1])
                current.append(_roff_text(glue.join(a or b for a, b in words)))
            elif macro in _BREAK_MACROS:
                end()
        elif not line.strip():
            end()
        elif not unfilled:
            current.append(_roff_text(line))
    end()
    return paragraphs


def _roff_text(text: str) -> str:
    text = _SIZE_RE.sub("", _FONT_RE.sub("", text))
    return _ESCAPE_RE.sub(lambda match: _ESCAPES.get(match.group(), ""), text)


def read_man(files: Mapping[str, bytes], lang: str) -> Extract:
    """One document per man page."""
    extract = Extract()
    for name in sorted(files):
        data = gunzip(files[name], name) if name.endswith(".gz") else files[name]
        paragraphs = man_paragraphs(decode(data, name))
        extract.counts["pages" if paragraphs else "pages_without_text"] += 1
        _document(extract, lang, paragraphs, name)
    return extract


def read_dictd(files: Mapping[str, bytes], lang: str) -> Extract:
    """dictd text: an entry starts at the margin, its lines are indented."""
    extract = Extract()
    for name in sorted(files):
        text = decode(gunzip(files[name], name), name)
        for entry in re.split(r"\n(?=\S)", text):
            extract.counts["entries"] += 1
            paragraphs = [
                " ".join(part.replace("{", "").replace("}", "").split())
                for part in re.split(r"\n\s*\n", entry)
            ]
            _document(extract, lang, paragraphs, name)
    return extract
