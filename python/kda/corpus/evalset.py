"""Frozen evaluation sets: choosing the pairs once, finding them again in every build.

Only ids (sha256 of ``en<TAB>zh``) and package versions are kept in the project; the sentences
have mixed licences and come from the packages themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kda.corpus.clean import count_han, dedupe_key, english_words
from kda.corpus.errors import CorpusError
from kda.corpus.overlap import OverlapIndex, grams
from kda.corpus.records import Pair

FROZEN_FOLDER = Path(__file__).parent / "frozen"
SETS = ("test", "dev", "indomain")
TEST_PER_STRATUM, DEV_PER_STRATUM = 250, 100
INDOMAIN_MODULUS, INDOMAIN_SIZE = 40, 500
MIN_WORDS, MAX_WORDS, MIN_HAN = 6, 45, 6
REQUIRED_SHARE = 0.99

_FINAL_RE = re.compile(r"[.!?][\"')\]\u201d\u2019]?$")


class EvalPair(NamedTuple):
    """A pair with the group it is reported under and the source it came from."""

    pair: Pair
    stratum: str
    source: str


@dataclass(frozen=True)
class FrozenSet:
    """Ids of one set in their fixed order, with the stratum of each."""

    name: str
    ids: dict[str, str]
    versions: dict[str, str]


def eligible(pair: Pair) -> bool:
    """Full sentences of moderate length: 6-45 English words, 6 Han or more, final . ! ?"""
    words = len(english_words(pair.en))
    return (
        MIN_WORDS <= words <= MAX_WORDS
        and count_han(pair.zh) >= MIN_HAN
        and bool(_FINAL_RE.search(pair.en))
    )


def load_frozen(name: str, folder: Path = FROZEN_FOLDER) -> FrozenSet:
    path = folder / f"{name}.ids"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror}") from error
    ids: dict[str, str] = {}
    versions: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if line.startswith("# package "):
            package, version = line.removeprefix("# package ").split()
            versions[package] = version
        elif line and not line.startswith("#"):
            match = re.fullmatch(r"([0-9a-f]{64}) ([a-z]+)", line)
            if match is None:
                raise CorpusError(f"{path}:{number}: expected '<sha256> <stratum>', got {line!r}")
            ids[match.group(1)] = match.group(2)
    return FrozenSet(name, ids, versions)


def write_frozen(
    name: str,
    rows: Sequence[EvalPair],
    versions: Mapping[str, str],
    folder: Path = FROZEN_FOLDER,
) -> None:
    head = [
        f"# {name}: sha256 of 'English<TAB>Chinese' after cleaning, and the stratum.",
        *(f"# package {package} {versions[package]}" for package in sorted(versions)),
    ]
    body = [f"{row.pair.id} {row.stratum}" for row in rows]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.ids").write_text("\n".join(head + body) + "\n", encoding="utf-8")


def find(frozen: FrozenSet, candidates: Mapping[str, EvalPair]) -> list[EvalPair]:
    """The frozen pairs that ``candidates`` (by id) still hold, in frozen order."""
    return [
        candidates[ident]._replace(stratum=stratum)
        for ident, stratum in frozen.ids.items()
        if ident in candidates
    ]


def choose(
    held_out: Iterable[EvalPair],
    in_domain: Iterable[EvalPair],
    training: Sequence[Pair],
) -> dict[str, list[EvalPair]]:
    """Choose test, dev and indomain anew (done once; the result is frozen).

    ``training`` are all other pairs. A candidate that shares an English 8-gram or a Chinese
    13-gram with one of them, or with a pair chosen before it, is not taken.
    """
    out_rows = _unique_eligible(held_out)
    in_rows = [
        row for row in _unique_eligible(in_domain) if int(row.pair.id, 16) % INDOMAIN_MODULUS == 0
    ]
    chosen_ids = {row.pair.id for row in in_rows}
    clean = _without_overlap(
        out_rows + in_rows, [pair for pair in training if pair.id not in chosen_ids]
    )
    sets: dict[str, list[EvalPair]] = {name: [] for name in SETS}
    taken: set[str] = set()
    room = {
        stratum: {"test": TEST_PER_STRATUM, "dev": DEV_PER_STRATUM}
        for stratum in {row.stratum for row in out_rows}
    }
    for row in clean:
        own = set(grams(row.pair.en, "en")) | set(grams(row.pair.zh, "zh"))
        if taken & own:
            continue
        if row.pair.id in chosen_ids:
            name = "indomain" if len(sets["indomain"]) < INDOMAIN_SIZE else ""
        else:
            name = next((key for key, left in room[row.stratum].items() if left), "")
            if name:
                room[row.stratum][name] -= 1
        if name:
            sets[name].append(row)
            taken |= own
    for rows in sets.values():
        rows.sort(key=lambda row: (row.stratum, row.pair.id))
    return sets


def _unique_eligible(rows: Iterable[EvalPair]) -> list[EvalPair]:
    unique: dict[str, EvalPair] = {}
    for row in rows:
        if eligible(row.pair):
            unique.setdefault(dedupe_key(row.pair.en), row)
    return sorted(unique.values(), key=lambda row: row.pair.id)


def _without_overlap(rows: list[EvalPair], training: Sequence[Pair]) -> list[EvalPair]:
    index = OverlapIndex((row.pair.en, row.pair.zh) for row in rows)
    touched: set[int] = set()
    for pair in training:
        touched |= index.owners(pair.en, "en") | index.owners(pair.zh, "zh")
    kept = [row for number, row in enumerate(rows) if number not in touched]
    return sorted(kept, key=lambda row: row.pair.id)
