"""Evaluation sets from the user's own copy of FLORES-200 or FLORES+.

The distributions differ: an archive (or folder) with one text file per language and split, or
tables with a column per language or a row per language. Every form becomes, per split, a list of
(English, Chinese, domain).
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from kda.evaluation.errors import EvaluationError, UsageError

SENTENCES = {"dev": 997, "devtest": 1012}
CODES = {"en": ("eng_Latn",), "zh": ("zho_Hans", "cmn_Hans")}
LICENCE = "CC BY-SA 4.0"
MANIFEST = "flores.json"
_TABLES = (".parquet", ".jsonl", ".tsv", ".csv")
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz")
_UNKNOWN = "flores"


@dataclass(frozen=True)
class FloresOptions:
    """Where the copy is, where the sets go, which splits (none: all that are there)."""

    source: Path
    out: Path
    splits: tuple[str, ...] = ()
    password: str | None = None
    allow_partial: bool = False


@dataclass(frozen=True)
class Sentence:
    en: str
    zh: str
    domain: str = _UNKNOWN

    @property
    def id(self) -> str:
        """As in the frozen sets of a corpus: sha256 of ``English<TAB>Chinese``."""
        return hashlib.sha256(f"{self.en}\t{self.zh}".encode()).hexdigest()


def export(options: FloresOptions) -> list[str]:
    """Write ``flores_{split}.{en,zh,meta}`` and a manifest; returns one line per split.

    Raises UsageError for a source of no known form, EvaluationError for a copy that lacks a
    language, has unequal counts, or not the number of sentences that FLORES has.
    """
    if not options.source.exists():
        raise UsageError(f"--from {options.source}: no such file or folder")
    splits = read(options)
    if not splits:
        raise EvaluationError(
            f"{options.source}: no English and Chinese sentences found; expected files named "
            f"{CODES['en'][0]} and {' or '.join(CODES['zh'])}, or a table with such columns"
        )
    for split, rows in splits.items():
        expected = SENTENCES[split]
        if len(rows) != expected and not options.allow_partial:
            raise EvaluationError(
                f"{options.source}: {split}: expected {expected} sentences, got {len(rows)} "
                "(--allow-partial takes them as they are)"
            )
    return _write(options, splits)


def read(options: FloresOptions) -> dict[str, list[Sentence]]:
    """Sentences per split, in the order of the source."""
    source = options.source
    if source.is_dir():
        tables = sorted(p for p in source.rglob("*") if p.suffix.lower() in _TABLES)
        texts = _paired_texts(
            (p.relative_to(source).as_posix(), p.read_bytes())
            for p in sorted(source.rglob("*"))
            if p.is_file() and _place(p.relative_to(source).as_posix())
        )
        found = _join_texts(texts, options)
        return found or _from_tables(tables, options)
    suffix = source.suffix.lower()
    if suffix in _TABLES:
        return _from_tables([source], options)
    if suffix in _ARCHIVES:
        return _join_texts(_paired_texts(_archive_members(source, options.password)), options)
    raise UsageError(
        f"--from {source}: unknown kind of file; expected a folder or one of "
        f"{', '.join(_ARCHIVES + _TABLES)}"
    )


def _place(name: str) -> tuple[str, str] | None:
    """(split, language) of a text file's name, e.g. dev/eng_Latn.dev or dev/dev.eng_Latn."""
    path = PurePosixPath(name)
    parts = path.name.split(".")
    for lang, codes in CODES.items():
        for code in codes:
            if code not in parts:
                continue
            rest = [part for part in parts if part != code and part != "txt"]
            split = rest[0] if rest else path.parent.name
            if split in SENTENCES:
                return split, lang
    return None


def _archive_members(path: Path, password: str | None) -> Iterator[tuple[str, bytes]]:
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for info in archive.infolist():
                    if _place(info.filename):
                        key = password.encode() if password else None
                        yield info.filename, archive.read(info, pwd=key)
        else:
            with tarfile.open(path) as archive:
                for member in archive:
                    stream = archive.extractfile(member) if _place(member.name) else None
                    if stream is not None:
                        yield member.name, stream.read()
    except (RuntimeError, NotImplementedError) as error:  # zipfile's words for a wrong password
        raise EvaluationError(
            f"{path}: cannot be unpacked here ({error}); give --password, or unpack it yourself "
            "and pass the folder"
        ) from error
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise EvaluationError(f"{path}: not a sound archive: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _lines(data: bytes, name: str) -> list[str]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise EvaluationError(f"{name}: expected UTF-8, byte {error.start + 1} is not") from error
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return [_one_line(line) for line in lines]


def _one_line(text: str) -> str:
    return re.sub(r"[\n\r\v\f\x85\u2028\u2029]+", " ", text).strip()


Texts = dict[tuple[str, str], list[str]]


def _paired_texts(files: Iterable[tuple[str, bytes]]) -> Texts:
    texts: Texts = {}
    for name, data in files:
        place = _place(name)
        if place is not None:
            texts[place] = _lines(data, name)
    return texts


def _join_texts(texts: Texts, options: FloresOptions) -> dict[str, list[Sentence]]:
    found: dict[str, list[Sentence]] = {}
    for split in SENTENCES:
        if options.splits and split not in options.splits:
            continue
        sides = {lang: texts.get((split, lang)) for lang in CODES}
        if all(side is None for side in sides.values()):
            continue
        missing = [lang for lang, side in sides.items() if side is None]
        if missing:
            raise EvaluationError(f"{options.source}: {split}: no {missing[0]} file")
        en, zh = sides["en"] or [], sides["zh"] or []
        if len(en) != len(zh):
            raise EvaluationError(
                f"{options.source}: {split}: {len(en)} English and {len(zh)} Chinese lines"
            )
        found[split] = [Sentence(a, b) for a, b in zip(en, zh, strict=True)]
    return found


def _from_tables(paths: Iterable[Path], options: FloresOptions) -> dict[str, list[Sentence]]:
    found: dict[str, list[Sentence]] = {}
    for path in paths:
        for split, rows in _from_table(path, options).items():
            found.setdefault(split, []).extend(rows)
    return {
        split: found[split]
        for split in SENTENCES
        if found.get(split) and (not options.splits or split in options.splits)
    }


def _table_split(path: Path, options: FloresOptions) -> str | None:
    """Split of a table without such a column: its name says it, or the user does."""
    for part in (path.stem.lower(), path.parent.name.lower()):
        for split in ("devtest", "dev"):
            if re.search(rf"(^|[^a-z]){split}([^a-z]|$)", part):
                return split
    return options.splits[0] if len(options.splits) == 1 else None


def _from_table(path: Path, options: FloresOptions) -> dict[str, list[Sentence]]:
    wide: dict[str, list[Sentence]] = {}
    tall: dict[str, dict[Any, dict[str, str]]] = {}
    default = _table_split(path, options)
    for number, row in enumerate(_rows(path), start=1):
        split = str(row.get("split") or default or "")
        if split not in SENTENCES:
            raise UsageError(
                f"{path}: row {number} does not say whether it is dev or devtest; give --split"
            )
        domain = str(row.get("domain") or _UNKNOWN).split()[0].lower()
        sides = {lang: _cell(row, codes) for lang, codes in CODES.items()}
        if sides["en"] is not None and sides["zh"] is not None:
            sentence = Sentence(_one_line(sides["en"]), _one_line(sides["zh"]), domain)
            wide.setdefault(split, []).append(sentence)
        elif row.get("text") is not None and row.get("id") is not None:
            code = f"{row.get('iso_639_3')}_{row.get('iso_15924')}"
            for lang, codes in CODES.items():
                if code in codes:
                    entry = tall.setdefault(split, {}).setdefault(row["id"], {"domain": domain})
                    entry[lang] = _one_line(str(row["text"]))
        else:
            raise EvaluationError(
                f"{path}: row {number}: expected columns sentence_eng_Latn and sentence_zho_Hans, "
                f"or id, iso_639_3, iso_15924 and text; got {', '.join(map(str, row))}"
            )
    for split, entries in tall.items():
        rows = [entries[key] for key in sorted(entries) if {"en", "zh"} <= set(entries[key])]
        wide.setdefault(split, []).extend(Sentence(r["en"], r["zh"], r["domain"]) for r in rows)
    return wide


def _cell(row: Mapping[str, Any], codes: tuple[str, ...]) -> str | None:
    for code in codes:
        for key in (f"sentence_{code}", code):
            if row.get(key) is not None:
                return str(row[key])
    return None


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        try:
            import pyarrow
            import pyarrow.parquet as parquet
        except ImportError as error:
            raise EvaluationError(
                f"{path}: pyarrow is not installed; pip install pyarrow"
            ) from error
        try:
            yield from parquet.read_table(path).to_pylist()
        except (pyarrow.ArrowException, OSError) as error:
            raise EvaluationError(f"{path}: cannot read: {error}") from error
        return
    lines = _lines(path.read_bytes(), str(path))
    if suffix == ".jsonl":
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise EvaluationError(f"{path}:{number}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise EvaluationError(f"{path}:{number}: expected an object")
            yield row
        return
    import csv

    dialect = "excel" if suffix == ".csv" else "excel-tab"
    table = io.StringIO("\n".join(lines))
    # Sentences hold quotes; a .tsv does not escape them.
    quoting = csv.QUOTE_MINIMAL if suffix == ".csv" else csv.QUOTE_NONE
    yield from csv.DictReader(table, dialect=dialect, quoting=quoting)


def _write(options: FloresOptions, splits: Mapping[str, list[Sentence]]) -> list[str]:
    out = options.out
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: is a file, expected a folder")
    out.mkdir(parents=True, exist_ok=True)
    manifest: dict[str, Any] = {
        "format": 1,
        "licence": LICENCE,
        "source": options.source.name,
        "sets": {},
        "files": {},
    }
    report: list[str] = []
    for split, rows in splits.items():
        name = f"flores_{split}"
        for side, lines in (
            ("en", [row.en for row in rows]),
            ("zh", [row.zh for row in rows]),
            ("meta", [f"{row.id}\t{row.domain}\tflores" for row in rows]),
        ):
            data = "".join(f"{line}\n" for line in lines).encode()
            _replace(out / f"{name}.{side}", data)
            manifest["files"][f"{name}.{side}"] = {
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
            }
        manifest["sets"][name] = {"pairs": len(rows)}
        report.append(f"{out}/{name}: {len(rows)} pairs")
    ignore = out / ".gitignore"
    if not ignore.exists():
        _replace(ignore, b"# FLORES must not be published as plain text.\nflores_*\n")
    text = json.dumps(manifest, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
    _replace(out / MANIFEST, text.encode())
    return report


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.writing")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
