"""The frozen sets and the rule that no test text is in training text, checked by other code.

Set KDA_CORPUS=DIR to check a corpus that was built (``kda data build --preset debian-small``) in
place of the bundled one.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kda.corpus import evalset
from kda.corpus.cli import main


def _words(text: str) -> list[str]:
    """Runs of ASCII letters and digits, without case: not the expression that the build uses."""
    word, words = "", []
    for char in text.lower() + " ":
        if char.isascii() and char.isalnum():
            word += char
        elif word:
            words.append(word)
            word = ""
    return words


def _characters(text: str) -> str:
    return "".join(char for char in text.lower() if char.isalnum())


def _runs(text: str, lang: str) -> set[str]:
    """English 8-grams of words, Chinese 13-grams of characters; a shorter text as a whole."""
    parts = _words(text) if lang == "en" else list(_characters(text))
    size = 8 if lang == "en" else 13
    if len(parts) < size:
        return {"whole:" + " ".join(parts)} if parts else set()
    return {" ".join(parts[i : i + size]) for i in range(len(parts) - size + 1)}


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="\n") as stream:
        for line in stream:
            yield line.rstrip("\n")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("KDA_CORPUS")
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp("corpus") / "tiny"
    assert main(["build", "--preset", "tiny", "--out", str(folder), "--quiet"]) == 0
    return folder


def _sets(corpus: Path) -> list[str]:
    return sorted(path.stem for path in (corpus / "eval").glob("*.meta"))


def test_no_evaluation_text_in_any_training_file(corpus: Path) -> None:
    protected: dict[str, set[str]] = {"en": set(), "zh": set()}
    for name in _sets(corpus):
        for lang in protected:
            for line in _lines(corpus / "eval" / f"{name}.{lang}"):
                protected[lang] |= _runs(line, lang)
    assert all(len(runs) > 100 for runs in protected.values())

    checked = Counter[str]()
    for line in _lines(corpus / "sft.train.jsonl"):
        row = json.loads(line)
        src, tgt = ("en", "zh") if row["direction"] == "en2zh" else ("zh", "en")
        for lang, text in ((src, row["src"]), (tgt, row["tgt"])):
            assert protected[lang].isdisjoint(_runs(text, lang)), text
        checked["sft"] += 1
    for name in ("pretrain.en.txt", "pretrain.zh.txt"):
        lang = name.split(".")[1]
        for line in _lines(corpus / name):
            assert protected[lang].isdisjoint(_runs(line, lang)), line
            checked[name] += 1
    for line in _lines(corpus / "heldout.txt"):  # lines of both languages
        lang = "zh" if any("\u4e00" <= char <= "\u9fff" for char in line) else "en"
        assert protected[lang].isdisjoint(_runs(line, lang)), line
        checked["heldout"] += 1
    assert set(checked) == {"sft", "pretrain.en.txt", "pretrain.zh.txt", "heldout"}


def test_held_out_packages_train_nothing(corpus: Path) -> None:
    manifest = json.loads((corpus / "MANIFEST.json").read_text(encoding="utf-8"))
    held_out = {
        name: row for name, row in manifest["sources"].items() if "held_out_for_evaluation" in row
    }
    if not held_out:
        assert manifest["options"]["preset"] == "tiny"
        pytest.skip("the tiny preset holds no package out")
    strata = {row["held_out_for_evaluation"] for row in held_out.values()}
    assert strata == {"desc", "docs", "narrative", "ui"}
    for name, row in held_out.items():
        assert "pairs" not in row, name
        # English descriptions of packages, line by line: what touches an evaluated one is left out.
        if row["held_out_for_evaluation"] == "desc":
            assert row["documents"]["lines_overlap_evaluation"] > 0
        else:
            assert "documents" not in row, name


def test_sets_are_aligned_and_their_ids_are_of_their_text(corpus: Path) -> None:
    every: list[str] = []
    for name in _sets(corpus):
        en, zh, meta = (
            list(_lines(corpus / "eval" / f"{name}.{end}")) for end in ("en", "zh", "meta")
        )
        assert len(en) == len(zh) == len(meta) > 0
        for a, b, row in zip(en, zh, meta, strict=True):
            ident, stratum, source = row.split("\t")
            assert hashlib.sha256(f"{a}\t{b}".encode()).hexdigest() == ident
            assert stratum and source and a.strip() == a and b.strip() == b
            every.append(ident)
    assert len(set(every)) == len(every)  # no pair is in two sets


def test_built_sets_hold_the_frozen_ids(corpus: Path) -> None:
    manifest = json.loads((corpus / "MANIFEST.json").read_text(encoding="utf-8"))
    if "frozen_evaluation" not in manifest:
        assert manifest["options"]["preset"] == "tiny"
        pytest.skip("the tiny preset has no frozen sets")
    for name in evalset.SETS:
        frozen = evalset.load_frozen(name)
        found = [line.split("\t")[:2] for line in _lines(corpus / "eval" / f"{name}.meta")]
        assert len(found) >= 0.99 * len(frozen.ids)
        assert found == [
            [ident, stratum]
            for ident, stratum in frozen.ids.items()
            if ident in {row[0] for row in found}
        ]


def test_frozen_ids_follow_the_rule_they_were_chosen_by() -> None:
    sets = {name: evalset.load_frozen(name) for name in evalset.SETS}
    strata = ("desc", "docs", "narrative", "ui")
    assert Counter(sets["test"].ids.values()) == dict.fromkeys(strata, 250)
    assert Counter(sets["dev"].ids.values()) == dict.fromkeys(strata, 100)
    assert Counter(sets["indomain"].ids.values()) == {"indomain": 500}
    assert all(int(ident, 16) % 40 == 0 for ident in sets["indomain"].ids)
    # In the order of ids: dev takes what comes after test in each stratum.
    for stratum in strata:
        test = [ident for ident, s in sets["test"].ids.items() if s == stratum]
        dev = [ident for ident, s in sets["dev"].ids.items() if s == stratum]
        assert test == sorted(test) and dev == sorted(dev)
        assert max(test) < min(dev)
    # No sentence is in the project, and each package's version is.
    for name, frozen in sets.items():
        text = (evalset.FROZEN_FOLDER / f"{name}.ids").read_text(encoding="utf-8")
        assert all(len(line) < 120 and line.isascii() for line in text.splitlines())
        assert len(frozen.versions) >= 5


def test_evaluation_reads_what_the_build_writes(corpus: Path) -> None:
    """The scorer's view of a set: hypotheses that are the references score 100."""
    pytest.importorskip("sacrebleu")
    from kda.evaluation.scores import corpus_scores

    for lang in ("en", "zh"):
        lines = list(_lines(corpus / "eval" / f"mini.{lang}"))
        got = corpus_scores(lines, lines, lang)
        assert got["bleu"] == pytest.approx(100.0)


def test_corpus_tool_needs_no_evaluation_packages() -> None:
    code = (
        "import sys\n"
        "sys.modules['sacrebleu'] = sys.modules['langdetect'] = None\n"
        "import kda.corpus.cli, kda.evaluation.cli, kda.evaluation.flores\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
