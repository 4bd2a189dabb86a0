"""Output folder: written beside its final place, renamed at the end, described by MANIFEST.json."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from kda.corpus.errors import CorpusError, UsageError
from kda.corpus.records import document_hash

MANIFEST = "MANIFEST.json"
FORMAT = 1
_BUCKETS = 64


class Staging:
    """A temporary folder next to ``out``; ``commit`` moves its files into place.

    Files in ``out`` that an earlier build did not write are never touched. While a commit is
    under way ``out`` has no MANIFEST.json, so an interrupted one is seen by ``verify``.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        if out.exists() and not out.is_dir():
            raise UsageError(f"--out {out}: is a file, expected a folder")
        if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).exists():
            raise UsageError(f"--out {out}: folder is not empty and holds no {MANIFEST} of a build")
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            self.path = Path(tempfile.mkdtemp(prefix=f".{out.name}.building-", dir=out.parent))
        except OSError as error:
            raise CorpusError(f"--out {out}: cannot create: {error.strerror}") from error
        self.path.chmod(0o755)

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def commit(self, manifest: dict[str, Any]) -> None:
        manifest["files"] = describe(self.path)
        text = json.dumps(manifest, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
        (self.path / MANIFEST).write_text(text, encoding="utf-8")
        if not self.out.exists():
            self.path.rename(self.out)
            return
        old = self.out / MANIFEST
        stale: set[str] = set()
        if old.exists():
            with contextlib.suppress(CorpusError):
                stale = set(load_manifest(self.out)["files"]) - set(manifest["files"])
            old.unlink()
        for name in stale:
            with contextlib.suppress(OSError):
                _inside(self.out, name).unlink()
        for name in manifest["files"]:
            target = self.out / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).replace(target)
        (self.path / MANIFEST).replace(old)


def _inside(root: Path, name: str) -> Path:
    path = root / name
    if os.path.isabs(name) or ".." in Path(name).parts:
        raise CorpusError(f"{root / MANIFEST}: file name {name!r} leaves the folder")
    return path


def describe(root: Path) -> dict[str, dict[str, Any]]:
    """bytes, sha256, lines and (for document files) documents of every file below ``root``."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        digest, size, lines, documents, blank = hashlib.sha256(), 0, 0, 0, True
        with path.open("rb") as stream:
            for line in stream:
                digest.update(line)
                size += len(line)
                lines += 1
                empty = line == b"\n"
                documents += blank and not empty
                blank = empty
        row: dict[str, Any] = {
            "bytes": size,
            "sha256": digest.hexdigest(),
            "lines": lines,
        }
        if path.name.startswith(("pretrain.", "heldout.")):
            row["documents"] = documents
        found[path.relative_to(root).as_posix()] = row
    return found


def load_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise CorpusError(f"{path}: not found; is {folder} the output of a build?") from error
    except (OSError, ValueError) as error:
        raise CorpusError(f"{path}: cannot read: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("files"), dict):
        raise CorpusError(f"{path}: expected an object with 'files'")
    if data.get("format") != FORMAT:
        raise CorpusError(f"{path}: format {data.get('format')!r} is not supported ({FORMAT} is)")
    return data


def verify(folder: Path) -> list[str]:
    """Differences between MANIFEST.json and the files; empty when all is well."""
    problems: list[str] = []
    for name, row in sorted(load_manifest(folder)["files"].items()):
        path = _inside(folder, name)
        if not path.is_file():
            problems.append(f"{name}: missing")
            continue
        size = path.stat().st_size
        if size != row.get("bytes"):
            problems.append(f"{name}: {size} bytes, the manifest says {row.get('bytes')}")
            continue
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        if digest.hexdigest() != row.get("sha256"):
            problems.append(f"{name}: sha256 differs from the manifest")
    return problems


class DocumentSink:
    """Collects documents of one file and writes them ordered by hash, empty lines between.

    Records wait in 64 bucket files by first hash byte, so memory holds 1/64 of the text and the
    order is independent of the order of arrival.
    """

    def __init__(self, staging: Path, name: str) -> None:
        self._target = staging / name
        self._folder = Path(tempfile.mkdtemp(prefix="sort-", dir=staging))
        self._buckets: dict[int, IO[bytes]] = {}
        self.documents = 0

    def add(self, text: str) -> None:
        digest, data = document_hash(text), text.encode()
        number = digest[0] * _BUCKETS // 256
        if number not in self._buckets:
            self._buckets[number] = (self._folder / f"{number:02d}").open("wb")
        self._buckets[number].write(digest + len(data).to_bytes(8, "little") + data)
        self.documents += 1

    def close(self) -> None:
        with self._target.open("wb") as out:
            first = True
            for number in sorted(self._buckets):
                self._buckets[number].close()
                for _, data in sorted(self._records(number)):
                    out.write(data + b"\n" if first else b"\n" + data + b"\n")
                    first = False
        shutil.rmtree(self._folder)

    def _records(self, number: int) -> Iterator[tuple[bytes, bytes]]:
        with (self._folder / f"{number:02d}").open("rb") as stream:
            while head := stream.read(40):
                yield head[:32], stream.read(int.from_bytes(head[32:], "little"))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(f"{line}\n" for line in lines)


def sft_row(src: str, tgt: str, direction: str) -> str:
    row: Mapping[str, str] = {"src": src, "tgt": tgt, "direction": direction}
    return json.dumps(row, ensure_ascii=False)
