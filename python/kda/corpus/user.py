"""The user's own text: .txt, .jsonl and .parquet files, read as a stream.

Text is kept as it is, apart from NFC and white space; only lines that are no text (NUL bytes,
invalid UTF-8) go. A document longer than 64 kB is cut between lines, so that order and hold-out
by document hash stay meaningful for a file that is one long text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kda.corpus.clean import (
    broken,
    count_han,
    decode,
    english_words,
    normalise,
    to_simplified,
)
from kda.corpus.errors import CorpusError, UsageError
from kda.corpus.records import Document, Pair

SUFFIXES = (".txt", ".jsonl", ".parquet")
DOCUMENT_BYTES = 64_000
BATCH_BYTES = 2_000_000
_TEXT_COLUMNS = ("text", "content")
_DIRECTIONS = ("en2zh", "zh2en")


@dataclass(frozen=True)
class UserOptions:
    """How to read: the text column (None: ``text`` or ``content``), the language, the script."""

    text_column: str | None = None
    lang: str = "auto"
    simplify: bool = False


class UserPair(NamedTuple):
    """A pair in the direction that the user's row gave."""

    pair: Pair
    direction: str


@dataclass
class Batch:
    """Raw records of one file (documents as text, pairs as src, tgt, direction)."""

    name: str
    documents: list[str]
    pairs: list[tuple[str, str, str | None]]
    size: int = 0


@dataclass
class CleanBatch:
    documents: list[Document]
    pairs: list[UserPair]
    counts: Counter[str]
    size: int


def find_inputs(paths: Sequence[Path]) -> list[Path]:
    """All readable files below ``paths``, sorted; names an unusable path."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(
                item
                for item in path.rglob("*")
                if item.is_file() and item.suffix.lower() in SUFFIXES
            )
            if not inside:
                raise UsageError(f"--input {path}: no {', '.join(SUFFIXES)} file in this folder")
            found.extend(inside)
        elif not path.exists():
            raise UsageError(f"--input {path}: no such file or folder")
        elif path.suffix.lower() not in SUFFIXES:
            raise UsageError(
                f"--input {path}: unknown kind of file; supported: {', '.join(SUFFIXES)}"
            )
        else:
            found.append(path)
    unique = list(dict.fromkeys(path.resolve() for path in found))
    return unique


def read_batches(path: Path, options: UserOptions) -> Iterator[Batch]:
    """Records of one file in batches of about 2 MB; errors are one line with the place."""
    reader = {".txt": _read_txt, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
    batch = Batch(path.name, [], [])
    try:
        for item in reader[path.suffix.lower()](path, options):
            if isinstance(item, str):
                batch.documents.append(item)
                batch.size += len(item.encode("utf-8", "surrogatepass"))
            else:
                batch.pairs.append(item)
                batch.size += sum(len(part.encode("utf-8", "surrogatepass")) for part in item[:2])
            if batch.size >= BATCH_BYTES:
                yield batch
                batch = Batch(path.name, [], [])
    except OSError as error:
        raise CorpusError(f"{path}: cannot read: {error.strerror or error}") from error
    if batch.documents or batch.pairs:
        yield batch


Record = str | tuple[str, str, str | None]


def _read_txt(path: Path, options: UserOptions) -> Iterator[Record]:
    del options
    lines: list[str] = []
    size = 0
    with path.open("rb") as stream:
        for raw in stream:
            if not raw.strip() or size >= DOCUMENT_BYTES:
                if lines:
                    yield "\n".join(lines)
                lines, size = [], 0
            if raw.strip():
                lines.append(decode(raw, path.name).rstrip("\r\n"))
                size += len(raw)
    if lines:
        yield "\n".join(lines)


def _read_jsonl(path: Path, options: UserOptions) -> Iterator[Record]:
    with path.open("rb") as stream:
        for number, raw in enumerate(stream, start=1):
            if not raw.strip():
                continue
            place = f"{path}:{number}"
            try:
                row = json.loads(decode(raw, place))
            except (ValueError, RecursionError) as error:
                text = str(error).split(":")[0]
                raise CorpusError(f"{place}: not a JSON object: {text}") from error
            if not isinstance(row, dict):
                raise CorpusError(f"{place}: expected a JSON object, got {type(row).__name__}")
            yield _from_row(row, place, options)


def _from_row(row: dict[str, Any], place: str, options: UserOptions) -> Record:
    if "src" in row and "tgt" in row and options.text_column is None:
        direction = row.get("direction")
        if direction not in (None, *_DIRECTIONS):
            raise CorpusError(
                f"{place}: direction: expected en2zh or zh2en, got {str(direction)[:40]!r}"
            )
        return (
            _text(row["src"], place, "src"),
            _text(row["tgt"], place, "tgt"),
            direction,
        )
    names = (options.text_column,) if options.text_column else _TEXT_COLUMNS
    name = next((name for name in names if name in row), None)
    if name is None:
        wanted = options.text_column or "text (and title), or src and tgt"
        raise CorpusError(
            f"{place}: expected field {wanted}; got {', '.join(sorted(map(str, row)))[:120]}"
        )
    text = _text(row[name], place, name)
    title = row.get("title")
    if isinstance(title, str) and title.strip() and text.split("\n", 1)[0].strip() != title.strip():
        return f"{title}\n{text}"
    return text


def _text(value: object, place: str, name: str) -> str:
    if not isinstance(value, str):
        raise CorpusError(f"{place}: {name}: expected a string, got {type(value).__name__}")
    return value


def _read_parquet(path: Path, options: UserOptions) -> Iterator[Record]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise CorpusError(f"{path}: reading .parquet needs pyarrow; pip install pyarrow") from error
    try:
        table = pyarrow.parquet.ParquetFile(path)
        names = table.schema_arrow.names
        columns = _parquet_columns(path, names, options)
        for group in table.iter_batches(batch_size=512, columns=columns):
            for row in group.to_pylist():
                filled = {name: value for name, value in row.items() if value is not None}
                if options.text_column in filled or filled.keys() & {
                    *_TEXT_COLUMNS,
                    "src",
                }:
                    yield _from_row(filled, str(path), options)
    except (pyarrow.ArrowException, ValueError, UnicodeDecodeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise CorpusError(f"{path}: cannot read parquet: {first}") from error


def _parquet_columns(path: Path, names: Sequence[str], options: UserOptions) -> list[str]:
    if options.text_column:
        wanted = [options.text_column]
    elif {"src", "tgt"} <= set(names):
        return [name for name in ("src", "tgt", "direction") if name in names]
    else:
        wanted = [name for name in _TEXT_COLUMNS if name in names][:1]
    if not wanted or wanted[0] not in names:
        raise CorpusError(
            f"{path}: no column {options.text_column or 'text'}; columns: "
            f"{', '.join(names)[:200]} (choose with --text-column)"
        )
    return wanted + (["title"] if "title" in names and wanted != ["title"] else [])


def detect_language(text: str) -> str | None:
    """``zh`` when Chinese characters are at least 3 in 10 of characters plus words, else ``en``.

    None for text with neither Chinese characters nor Latin words. The first 4,000 characters tell.
    """
    text = text[:4000]
    han, words = count_han(text), len(english_words(text))
    if not han and not any(char.isascii() and char.isalpha() for char in text):
        return None
    return "zh" if han * 10 >= 3 * (han + words) else "en"


def clean_batch(job: tuple[Batch, UserOptions]) -> CleanBatch:
    """Normalise one batch; runs in a worker process."""
    batch, options = job
    result = CleanBatch([], [], Counter(), batch.size)
    for text in batch.documents:
        lines = [line for line in _clean_lines(text.splitlines(), options, result.counts) if line]
        whole = "\n".join(lines)
        lang = options.lang if options.lang != "auto" else detect_language(whole)
        if not lines:
            result.counts["documents_empty"] += 1
        elif lang is None:
            result.counts["documents_other_language"] += 1
        else:
            for part in _cut(lines):
                result.documents.append(Document(lang, part, batch.name))
    for src, tgt, direction in batch.pairs:
        cleaned = _clean_pair(src, tgt, direction, batch.name, options)
        if isinstance(cleaned, str):
            result.counts[cleaned] += 1
        else:
            result.pairs.append(cleaned)
    return result


def _clean_lines(lines: Iterable[str], options: UserOptions, counts: Counter[str]) -> Iterator[str]:
    for raw in lines:
        if broken(raw):
            counts["lines_broken_bytes"] += 1
            continue
        line = normalise(raw)
        yield to_simplified(line)[0] if options.simplify else line


def _cut(lines: Sequence[str]) -> Iterator[tuple[str, ...]]:
    part: list[str] = []
    size = 0
    for line in lines:
        part.append(line)
        size += len(line.encode())
        if size >= DOCUMENT_BYTES:
            yield tuple(part)
            part, size = [], 0
    if part:
        yield tuple(part)


def _clean_pair(
    src: str, tgt: str, direction: str | None, name: str, options: UserOptions
) -> UserPair | str:
    if broken(src) or broken(tgt):
        return "pairs_broken_bytes"
    src, tgt = normalise(src), normalise(tgt)
    if not src or not tgt:
        return "pairs_empty"
    if src == tgt:
        return "pairs_identical_sides"
    if direction is None:
        languages = (detect_language(src), detect_language(tgt))
        direction = {("en", "zh"): "en2zh", ("zh", "en"): "zh2en"}.get(languages)  # type: ignore
        if direction is None:
            return "pairs_not_zh_en"
    en, zh = (src, tgt) if direction == "en2zh" else (tgt, src)
    return UserPair(Pair(en, to_simplified(zh)[0] if options.simplify else zh, name), direction)
