"""From extracts to files: hold-out, duplicates, frozen evaluation, manifest, determinism."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda.corpus import build as build_module
from kda.corpus import debian, evalset, output
from kda.corpus.apt import DebInfo
from kda.corpus.assemble import Assembler, TrainPair, without_numbers
from kda.corpus.build import BuildOptions, build
from kda.corpus.errors import CorpusError, UsageError
from kda.corpus.evalset import EvalPair
from kda.corpus.overlap import OverlapIndex, grams
from kda.corpus.recipes import SOURCES, UI, Source, sources_of
from kda.corpus.records import Document, Extract, Pair

NoOverlap = Callable[[Path, Sequence[str]], None]
_SYLLABLES = (
    "ba",
    "ce",
    "di",
    "fo",
    "gu",
    "ha",
    "je",
    "ki",
    "lo",
    "mu",
    "na",
    "pe",
    "ri",
    "so",
    "tu",
    "wa",
)


def sentence(number: int) -> Pair:
    """An eligible pair that shares no long n-gram with another number's."""
    digest = hashlib.sha256(str(number).encode()).digest()
    words = [f"{_SYLLABLES[a % 16]}{_SYLLABLES[b % 16]}{_SYLLABLES[a // 16]}"
             for a, b in zip(digest[:8], digest[8:16], strict=True)]  # fmt: skip
    han = "".join(
        chr(0x4E00 + a * 64 + b % 64) for a, b in zip(digest[:14], digest[14:28], strict=True)
    )
    return Pair(f"We saw {' '.join(words)}.", f"{han}。", "f")


def test_grams() -> None:
    assert list(grams("A b, c D e f g h i.", "en")) == [
        "a b c d e f g h",
        "b c d e f g h i",
    ]
    assert list(grams("One two!", "en")) == ["=one two"]
    assert list(grams("一二三四五六七八九十，甲乙丙丁", "zh")) == [
        "一二三四五六七八九十甲乙丙",
        "二三四五六七八九十甲乙丙丁",
    ]
    assert list(grams("…", "zh")) == []


def test_overlap_index_finds_shared_runs_and_short_equals() -> None:
    index = OverlapIndex(
        [
            ("the quick brown fox jumps over the lazy dog", "短句子"),
            ("Yes, we can.", "好"),
        ]
    )
    assert index.hits("He said: The quick brown fox jumps over the lazy cat", "en")
    assert not index.hits("the quick brown fox jumps over a lazy dog", "en")
    assert index.hits("短句子！", "zh")
    assert not index.hits("很短句子", "zh")
    assert index.owners("yes we can", "en") == {1}


@given(st.lists(st.lists(st.sampled_from(["ab", "cd", "efg", "hij"]), max_size=20), max_size=4))
def test_hits_agrees_with_owners(rows: list[list[str]]) -> None:
    *protected, text = [" ".join(row) for row in [*rows, ["ab", "cd"] * 6]]
    index = OverlapIndex((line, "") for line in protected)
    for line in [text, *protected, "ab cd"]:
        assert index.hits(line, "en") == bool(index.owners(line, "en"))


def assemble(folder: Path, protected: list[Pair], **options: object) -> Assembler:
    folder.mkdir(parents=True, exist_ok=True)
    return Assembler(folder, protected, **options)  # type: ignore[arg-type]


def test_training_pairs_stay_away_from_evaluation(
    tmp_path: Path, assert_no_overlap: NoOverlap
) -> None:
    held = sentence(1)
    assembler = assemble(tmp_path, [held])
    copy = held._replace(en=held.en + " And more words follow here.", zh="另外一个句子，没有关系。")
    outcome = assembler.add_pairs("s", "prose", map(TrainPair, [held, copy, sentence(2)]))
    assert outcome == {"in_evaluation": 1, "overlaps_evaluation": 1, "kept": 1}
    assembler.add_documents(
        [Document("zh", (f"前面的话。{held.zh}后面的话。", "这一行没有问题。"), "f")]
    )
    assembler.close({"test": [EvalPair(held, "x", "s")]})
    assert_no_overlap(tmp_path, ["test"])
    text = (tmp_path / "pretrain.zh.txt").read_text() + (tmp_path / "heldout.txt").read_text()
    assert text == "这一行没有问题。\n"


def test_duplicates_and_near_duplicates(tmp_path: Path) -> None:
    assembler = assemble(tmp_path, [])
    first = Pair("The same sentence, twice!", "同一个句子，说两遍！", "f")
    again = Pair("the same sentence twice", "同样的句子说了两次", "f")
    assert assembler.add_pairs("s", UI, map(TrainPair, [first, again])) == {
        "kept": 1,
        "duplicate": 1,
    }
    frames = [Pair(f"failed to get the {noun}{i} of it", f"无法得到它的第 {i} 个部分", "f")
              for i in range(20) for noun in ("name", "size", "owner")]  # fmt: skip
    outcome = assembler.add_pairs("s", UI, map(TrainPair, frames))
    assert outcome == {"kept": 40, "near_duplicate": 20}
    assert without_numbers("Linux 6.1.0-50 image") == without_numbers("Linux 6.1.0-49 image")


def test_prose_weight_and_directions(tmp_path: Path) -> None:
    assembler = assemble(tmp_path, [])
    assembler.add_pairs(
        "s", "prose", [TrainPair(sentence(1), 3), TrainPair(sentence(2), 1, ("zh2en",))]
    )
    assembler.close({})
    rows = [json.loads(x) for x in (tmp_path / "sft.train.jsonl").read_text().splitlines()]
    assert sorted(row["direction"] for row in rows) == ["en2zh"] * 3 + ["zh2en"] * 4
    assert sum(row["src"] == sentence(2).zh for row in rows) == 1


def test_heldout_is_one_percent_by_hash_and_disjoint(tmp_path: Path) -> None:
    documents = [Document("en", (f"Document number {i} of many.",), "f") for i in range(3000)]
    assembler = assemble(tmp_path, [])
    assembler.add_documents(documents)
    assembler.close({})
    held = (tmp_path / "heldout.txt").read_text().strip().split("\n\n")
    kept = (tmp_path / "pretrain.en.txt").read_text().strip().split("\n\n")
    assert len(held) + len(kept) == 3000
    assert 10 <= len(held) <= 60
    assert not set(held) & set(kept)
    backwards = assemble(tmp_path / "b", [])
    backwards.add_documents(reversed(documents))
    backwards.close({})
    for name in ("heldout.txt", "pretrain.en.txt"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_document_format(tmp_path: Path) -> None:
    assembler = assemble(tmp_path, [], heldout_one_in=10**9)
    assembler.add_documents(
        [
            Document("zh", ("第一行。", "第二行。"), "f"),
            Document("zh", ("另一篇。",), "f"),
        ]
    )
    assembler.add_documents([Document("zh", ("第一行。",), "f")])  # a repeated line goes
    assembler.close({})
    text = (tmp_path / "pretrain.zh.txt").read_text()
    assert sorted(text.removesuffix("\n").split("\n\n")) == [
        "另一篇。",
        "第一行。\n第二行。",
    ]
    assert output.describe(tmp_path)["pretrain.zh.txt"]["documents"] == 2
    assert assembler.counts["lines_duplicate"] == 1


def test_choose_evaluation_sets() -> None:
    held = [EvalPair(sentence(i), "docs", "d") for i in range(600)]
    training = [sentence(i) for i in range(600, 900)] + [held[5].pair]
    near = held[7].pair._replace(zh="完全不同的另外一个中文句子。")
    inside = [EvalPair(sentence(i), "indomain", "s") for i in range(1000, 3000)]
    sets = evalset.choose(held, inside, [*training, near, *(row.pair for row in inside)])
    assert len(sets["test"]) == evalset.TEST_PER_STRATUM
    assert len(sets["dev"]) == evalset.DEV_PER_STRATUM
    assert 20 <= len(sets["indomain"]) <= 90  # about 2000 / 40
    chosen = {row.pair.id for rows in sets.values() for row in rows}
    assert held[5].pair.id not in chosen
    assert held[7].pair.id not in chosen
    assert len(chosen) == sum(len(rows) for rows in sets.values())
    assert sets == evalset.choose(
        reversed(held), inside, [near, *training, *(r.pair for r in inside)]
    )


def test_frozen_files_of_the_project() -> None:
    sizes = {name: evalset.load_frozen(name) for name in evalset.SETS}
    assert {name: len(frozen.ids) for name, frozen in sizes.items()} == {
        "test": 1000,
        "dev": 400,
        "indomain": 500,
    }
    every = [ident for frozen in sizes.values() for ident in frozen.ids]
    assert len(set(every)) == len(every)
    strata = list(sizes["test"].ids.values())
    assert {name: strata.count(name) for name in set(strata)} == dict.fromkeys(
        ("narrative", "docs", "ui", "desc"), 250
    )
    assert all(frozen.versions for frozen in sizes.values())


def test_frozen_file_errors(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="No such file"):
        evalset.load_frozen("test", tmp_path)
    (tmp_path / "test.ids").write_text("abc docs\n")
    with pytest.raises(CorpusError, match=r"test\.ids:1: expected"):
        evalset.load_frozen("test", tmp_path)


def test_recipes_are_consistent() -> None:
    names = [source.name for source in SOURCES]
    assert len(set(names)) == len(names)
    small = {source.name for source in sources_of("debian-small")}
    assert small < {source.name for source in sources_of("debian-full")}
    # Both presets must hold every source that evaluation pairs come from.
    assert {source.name for source in SOURCES if source.stratum or source.in_domain} <= small
    assert all(source.licence for source in SOURCES)


def test_package_alternatives_and_optional_ones() -> None:
    source = Source("x", ("a|b", "c?"), "catalog", UI, "MIT", True)
    assert source.choose({"b", "c"}) == (["b", "c"], [])
    assert source.choose({"a", "b"}) == (["a"], [])
    assert source.choose({"c"}) == ([], ["a|b"])


@pytest.fixture
def fake_debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[debian.Collected]:
    """A preset of two small sources, and evaluation ids frozen from it."""
    held = Source("held", ("held-pkg",), "catalog", UI, "GPL-2+", True, stratum="ui")
    train = Source("train", ("train-pkg",), "catalog", "prose", "MIT", True, in_domain=True)
    info = {name: DebInfo(name, "1.0", "all", 5, "0" * 64) for name in ("held-pkg", "train-pkg")}
    collected = debian.Collected(packages=info, missing=["absent-pkg"])
    collected.extracts = [
        (train, Extract(
            [sentence(i) for i in range(100, 600)],
            [Document("en", (sentence(i).en,), "f") for i in range(80, 130)],
        )),
        (held, Extract(
            [sentence(i) for i in range(100)], [Document("zh", ("绝不能出现。",), "f")]
        )),
    ]  # fmt: skip
    monkeypatch.setattr(debian, "collect", lambda *args, **kwargs: collected)
    monkeypatch.setattr(evalset, "FROZEN_FOLDER", tmp_path / "frozen")
    monkeypatch.setattr(evalset.load_frozen, "__defaults__", (tmp_path / "frozen",), raising=False)
    monkeypatch.setattr(evalset.write_frozen, "__defaults__", (tmp_path / "frozen",), raising=False)
    debian.freeze(collected)
    yield collected


def options(out: Path) -> BuildOptions:
    return BuildOptions(out=out, preset="debian-small", quiet=True)


def test_debian_build(
    fake_debian: debian.Collected, tmp_path: Path, assert_no_overlap: NoOverlap
) -> None:
    manifest = build(options(tmp_path / "a"))
    assert_no_overlap(tmp_path / "a", ["test", "dev", "indomain", "mini"])
    assert manifest["frozen_evaluation"]["test"]["found"] == 100
    assert manifest["missing_packages"] == ["absent-pkg"]
    assert manifest["packages"]["held-pkg"]["version"] == "1.0"
    assert manifest["sources"]["train"]["pairs"]["kept"] > 400
    assert manifest["licences"] == {"GPL-2+": ["held"], "MIT": ["train"]}
    assert "绝不能出现" not in (tmp_path / "a" / "pretrain.zh.txt").read_text()
    assert (tmp_path / "a" / "eval" / "test.meta").read_text().count("\tui\theld\n") == 100
    build(options(tmp_path / "b"))
    for path in (tmp_path / "a").rglob("*"):
        if path.is_file():
            twin = tmp_path / "b" / path.relative_to(tmp_path / "a")
            assert path.read_bytes() == twin.read_bytes(), path
    assert output.verify(tmp_path / "a") == []


def test_missing_evaluation_pairs_fail_loudly(
    fake_debian: debian.Collected, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = fake_debian.extracts[1][1].pairs
    lost = evalset.load_frozen("test").ids
    held[:] = [pair for pair in held if pair.id != next(iter(lost))]
    build(options(tmp_path / "one"))  # 99 of 100 is enough
    del held[:3]
    with pytest.raises(CorpusError, match=r"set test: \d+ of 100 ids found, 99% are required"):
        build(options(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    manifest = build(replace(options(tmp_path / "out"), allow_missing_eval=True))
    assert manifest["frozen_evaluation"]["test"]["complete"] is False
    assert "warning: frozen evaluation set test" in capsys.readouterr().err


def test_failed_build_leaves_nothing(
    fake_debian: debian.Collected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(options(tmp_path / "out"))
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}

    def fail(self: Assembler, evaluation: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(build_module.Assembler, "close", fail)
    with pytest.raises(KeyboardInterrupt):
        build(options(tmp_path / "out"))
    after = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert before == after
    assert [path.name for path in tmp_path.iterdir() if ".building-" in path.name] == []


def test_rebuild_keeps_foreign_files_and_drops_stale_ones(tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(BuildOptions(out=out, preset="tiny", quiet=True))
    (out / "tokenizer.model").write_text("mine")
    text = tmp_path / "own.txt"
    text.write_text("My own text is here.\n")
    build(BuildOptions(out=out, inputs=(text,), quiet=True))
    assert (out / "tokenizer.model").read_text() == "mine"
    assert not (out / "eval" / "test.en").exists()  # own text without pairs has no such set
    assert output.verify(out) == []


def test_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        build(BuildOptions(out=tmp_path, preset="tiny", quiet=True))
    with pytest.raises(UsageError, match="is a file"):
        build(BuildOptions(out=tmp_path / "x", preset="tiny", quiet=True))
    assert os.listdir(tmp_path) == ["x"]
