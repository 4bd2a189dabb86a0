"""Private apt: own package lists and cache folder, the system's configured sources.

Works as root and as an ordinary user, installs nothing, and knows no host: apt decides where
packages come from and checks their signatures. The lists and archives live under the cache
folder, so the system's own lists are neither needed nor changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kda.corpus.errors import CorpusError
from kda.corpus.progress import Progress, warn

LISTS_MAX_AGE_S = 7 * 24 * 3600
_BATCH_BYTES = 32_000_000


@dataclass(frozen=True)
class DebInfo:
    """One downloadable package version as the lists describe it."""

    name: str
    version: str
    architecture: str
    size: int
    sha256: str

    @property
    def filename(self) -> str:
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class Apt:
    """apt-get and apt-cache with every writable path under ``cache``."""

    def __init__(self, cache: Path, *, quiet: bool = False) -> None:
        for tool in ("apt-get", "apt-cache", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise CorpusError(
                    f"{tool}: not found; the debian presets need Debian or Ubuntu "
                    "(elsewhere use --preset tiny or --input)"
                )
        self._root = cache.resolve()
        self._lists = self._root / "apt" / "lists"
        self._archives = self._root / "apt" / "cache"
        self._stamp = self._root / "apt" / "updated"
        self._debs = self._root / "debs"
        self._quiet = quiet
        try:
            for folder in (
                self._lists / "partial",
                self._archives / "archives" / "partial",
                self._debs,
            ):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CorpusError(f"--cache {cache}: cannot create: {error.strerror}") from error

    def _options(self) -> list[str]:
        options = [
            f"Dir::State::Lists={self._lists}",
            f"Dir::Cache={self._archives}",
            "Dir::Cache::pkgcache=pkgcache.bin",
            "Dir::Cache::srcpkgcache=srcpkgcache.bin",
            "Acquire::Languages=zh_CN,en",
            "Acquire::GzipIndexes=false",
            "Acquire::Retries=3",
            "APT::Get::List-Cleanup=false",
        ]
        if os.geteuid() == 0:
            # apt would drop to a user that may not write our folder, and warn on every file.
            options.append("APT::Sandbox::User=root")
        return [part for option in options for part in ("-o", option)]

    def _call(self, tool: str, *arguments: str, cwd: Path | None = None) -> tuple[int, str, str]:
        environment = {
            **os.environ,
            "LC_ALL": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
        }
        done = subprocess.run(
            [tool, *self._options(), *arguments],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def update(self, *, refresh: bool) -> None:
        """Fetch the package lists unless fresh ones are in the cache."""
        age = time.time() - self._stamp.stat().st_mtime if self._stamp.exists() else None
        if not refresh and age is not None and age < LISTS_MAX_AGE_S:
            return
        progress = Progress("package lists", 0, "bytes", quiet=self._quiet)
        code, _, stderr = self._call("apt-get", "-q", "update")
        problems = [line for line in stderr.splitlines() if line.startswith(("E:", "W:"))]
        if code != 0 or any("Failed to fetch" in line for line in problems):
            reason = problems[0] if problems else f"apt-get update: exit code {code}"
            if age is None and code != 0:
                raise CorpusError(f"package lists: {reason}")
            warn(f"package lists: {reason}; going on with what is there")
            if age is None:
                self._stamp.touch()
            return
        self._stamp.touch()
        progress.add(sum(path.stat().st_size for path in self._lists.glob("*_Packages*")))
        progress.finish()

    def lookup(self, names: Iterable[str]) -> dict[str, DebInfo]:
        """Candidate version of each known package; unknown names are simply absent."""
        found: dict[str, DebInfo] = {}
        wanted = sorted(set(names))
        _, stdout, _ = self._call("apt-cache", "show", "--no-all-versions", *wanted)
        for stanza in stdout.split("\n\n"):
            fields = dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", stanza, flags=re.MULTILINE))
            if not {"Package", "Version", "Architecture", "Size", "SHA256"} <= fields.keys():
                continue  # installed from elsewhere: the lists do not offer it
            info = DebInfo(
                name=fields["Package"],
                version=fields["Version"],
                architecture=fields["Architecture"],
                size=int(fields["Size"]),
                sha256=fields["SHA256"].lower(),
            )
            found.setdefault(info.name, info)
        return {name: info for name, info in found.items() if name in wanted}

    def _cached(self, info: DebInfo) -> bool:
        path = self._debs / info.filename
        if not path.exists():
            return False
        if path.stat().st_size == info.size and sha256_file(path) == info.sha256:
            return True
        path.unlink()
        return False

    def download(self, infos: Sequence[DebInfo]) -> dict[str, Path]:
        """Path of each package's .deb, fetched where the cache lacks it, checksums verified."""
        todo = [info for info in infos if not self._cached(info)]
        if todo:
            total = sum(info.size for info in todo)
            progress = Progress("download", total, "bytes", quiet=self._quiet)
            for batch in _batches(todo):
                self._fetch(batch)
                progress.add(sum(info.size for info in batch))
            progress.finish(f"{len(todo)} packages, {len(infos) - len(todo)} were in the cache")
        return {info.name: self._debs / info.filename for info in infos}

    def _fetch(self, batch: Sequence[DebInfo]) -> None:
        # A folder of its own: an interrupted download never looks like a finished one.
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=self._root) as folder:
            targets = [f"{info.name}={info.version}" for info in batch]
            code, _, stderr = self._call("apt-get", "-q", "download", *targets, cwd=Path(folder))
            if code != 0:
                lines = [line for line in stderr.splitlines() if line.startswith("E:")]
                reason = lines[0] if lines else f"exit code {code}"
                raise CorpusError(f"apt-get download {targets[0]} ...: {reason}")
            for info in batch:
                path = Path(folder) / info.filename
                if not path.exists():
                    raise CorpusError(f"apt-get download {info.name}: {info.filename} missing")
                if sha256_file(path) != info.sha256:
                    raise CorpusError(f"{info.filename}: checksum differs from the package lists")
                path.replace(self._debs / info.filename)

    def translations(self) -> list[tuple[str, Path]]:
        """(language, file) of the package description lists, system distribution only."""
        code, stdout, stderr = self._call(
            "apt-get", "indextargets", "--format", "$(ORIGIN)|$(LANGUAGE)|$(FILENAME)"
        )
        if code != 0:
            raise CorpusError(f"apt-get indextargets: {stderr.strip().splitlines()[-1:]}")
        languages = ("en", "zh_CN")
        rows: list[tuple[str, Path]] = []
        for line in stdout.splitlines():
            origin, _, rest = line.partition("|")
            language, _, name = rest.partition("|")
            if origin in ("Debian", "Ubuntu") and language in languages and Path(name).exists():
                rows.append((language, Path(name)))
        return sorted(rows, key=lambda row: (row[0], row[1].name))


def _batches(infos: Sequence[DebInfo]) -> Iterable[list[DebInfo]]:
    batch: list[DebInfo] = []
    for info in infos:
        batch.append(info)
        if sum(item.size for item in batch) >= _BATCH_BYTES:
            yield batch
            batch = []
    if batch:
        yield batch
