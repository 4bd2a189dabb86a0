"""Run one source's reader over the files inside its packages (nothing is unpacked to disk)."""

from __future__ import annotations

import re
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from kda.corpus.errors import CorpusError
from kda.corpus.readers import catalog, markup, plain
from kda.corpus.recipes import Source
from kda.corpus.records import Extract

MAX_MEMBER_BYTES = 96_000_000


def deb_members(path: Path, pattern: str, *, also: str = r"/copyright$") -> dict[str, bytes]:
    """Regular files inside a .deb whose path matches ``pattern`` or ``also``."""
    wanted = re.compile(f"(?:{pattern})|(?:{also})")
    members: dict[str, bytes] = {}
    with subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                for member in archive:
                    name = member.name.removeprefix("./")
                    if not member.isfile() or not wanted.search(name):
                        continue
                    if member.size > MAX_MEMBER_BYTES:
                        raise CorpusError(f"{path.name}: {name}: {member.size} bytes is too large")
                    stream = archive.extractfile(member)
                    members[name] = stream.read() if stream else b""
            process.stdout.read()  # padding after the end mark, so that dpkg-deb ends well
        except (tarfile.TarError, EOFError, OSError) as error:
            process.kill()
            raise CorpusError(f"{path.name}: cannot unpack: {error}") from error
        reason = process.stderr.read().decode(errors="replace").strip()
    if process.returncode != 0:
        raise CorpusError(f"{path.name}: dpkg-deb: {reason or process.returncode}")
    return members


def declared_licence(text: str) -> str | None:
    """Licence of ``Files: *`` in a machine-readable copyright file, if there is one."""
    if not re.match(r"format(?:-specification)?:", text, flags=re.IGNORECASE):
        return None
    for stanza in re.split(r"\n\s*\n", text):
        if re.search(r"^Files:\s*\*\s*$", stanza, flags=re.MULTILINE):
            match = re.search(r"^License:[ \t]*(\S.*)$", stanza, flags=re.MULTILINE)
            return " ".join(match.group(1).split()) if match else None
    return None


def find_twins(names: Sequence[str], twin: tuple[str, str]) -> list[tuple[str, str]]:
    """(English path, Chinese path) for every Chinese file whose English twin is there."""
    known = set(names)
    pattern = re.compile(twin[0])
    rows = []
    for name in sorted(names):
        if pattern.search(name):
            other = pattern.sub(twin[1], name)
            if other != name and other in known:
                rows.append((other, name))
    return rows


def read_files(source: Source, files: Mapping[str, bytes]) -> Extract:
    """Dispatch to the reader that ``source`` names."""
    twins = find_twins(list(files), source.twin) if source.twin else []
    if source.reader == "catalog":
        return catalog.read(files)
    if source.reader == "html":
        extract = markup.read_twins(files, twins)
        used = {name for row in twins for name in row}
        for name in sorted(set(files) - used):  # English pages that nobody translated
            if source.name == "linux-doc" and "/translations/" not in name:
                page = markup.blocks(markup.parse_html(files[name], name))
                markup.add_document(extract, "en", page, name)
        return extract
    if source.reader == "html-id":
        return markup.read_by_id(files, twins)
    if source.reader == "mallard":
        return markup.read_twins(files, twins, xml=True)
    if source.reader == "crawl":
        return plain.read_crawl(files)
    if source.reader == "fortunes":
        return plain.read_fortunes(files, source.lang)
    if source.reader == "man":
        return plain.read_man(files, source.lang)
    if source.reader == "dictd":
        return plain.read_dictd(files, source.lang)
    raise ValueError(f"source {source.name}: unknown reader {source.reader}")


def extract_source(source: Source, debs: Mapping[str, Path]) -> tuple[Extract, dict[str, str]]:
    """Pairs and documents of one source, and the licences that its packages declare."""
    files: dict[str, bytes] = {}
    licences: dict[str, str] = {}
    for package, path in sorted(debs.items()):
        members = deb_members(path, source.pattern)
        for name in [name for name in members if name.endswith("/copyright")]:
            licence = declared_licence(members.pop(name).decode("utf-8", "replace"))
            if licence and f"/{package}/" in name:
                licences[package] = licence
        files.update(members)
    return read_files(source, files), licences
