"""export-flores on made-up copies of every form; no sentence of FLORES is here."""

from __future__ import annotations

import csv
import hashlib
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from kda.evaluation.cli import main
from kda.evaluation.flores import SENTENCES

ROWS = [
    (f'Made-up sentence {n} with "quotes" and a, comma.', f"编造的句子{n}，带“引号”。")
    for n in range(5)
]


def _texts(folder: Path, style: str = "200", rows: list[tuple[str, str]] = ROWS) -> None:
    for split in SENTENCES:
        (folder / split).mkdir(parents=True, exist_ok=True)
        for side, code in ((0, "eng_Latn"), (1, "zho_Hans" if style == "200" else "cmn_Hans")):
            name = f"{code}.{split}" if style == "200" else f"{split}.{code}"
            text = "".join(f"{row[side]}\n" for row in rows)
            (folder / split / name).write_text(text, encoding="utf-8")
        (folder / split / f"deu_Latn.{split}").write_text("Satz\n" * 9, encoding="utf-8")


def _run(source: Path, out: Path, *more: str) -> int:
    return main(["export-flores", "--from", str(source), "--out", str(out), *more])


def _check(out: Path, split: str = "devtest", domain: str = "flores") -> None:
    name = f"flores_{split}"
    assert (out / f"{name}.en").read_text(encoding="utf-8") == "".join(f"{a}\n" for a, _ in ROWS)
    assert (out / f"{name}.zh").read_text(encoding="utf-8") == "".join(f"{b}\n" for _, b in ROWS)
    meta = [line.split("\t") for line in (out / f"{name}.meta").read_text("utf-8").splitlines()]
    assert [row[1:] for row in meta] == [[domain, "flores"]] * len(ROWS)
    assert meta[0][0] == hashlib.sha256("\t".join(ROWS[0]).encode()).hexdigest()
    manifest = json.loads((out / "flores.json").read_text(encoding="utf-8"))
    assert manifest["licence"] == "CC BY-SA 4.0"
    assert manifest["sets"][name] == {"pairs": len(ROWS)}
    for file, row in manifest["files"].items():
        assert hashlib.sha256((out / file).read_bytes()).hexdigest() == row["sha256"]
    assert "flores_*" in (out / ".gitignore").read_text(encoding="utf-8")


@pytest.mark.parametrize("style", ["200", "plus"])
@pytest.mark.parametrize("form", ["folder", "zip", "tar.gz"])
def test_text_files(tmp_path: Path, style: str, form: str) -> None:
    source = tmp_path / "copy"
    _texts(source, style)
    if form == "zip":
        with zipfile.ZipFile(tmp_path / "copy.zip", "w") as archive:
            for path in source.rglob("*.*"):
                archive.write(path, f"flores/{path.relative_to(source)}")
        source = tmp_path / "copy.zip"
    elif form == "tar.gz":
        with tarfile.open(tmp_path / "copy.tar.gz", "w:gz") as archive:
            archive.add(source, "flores")
        source = tmp_path / "copy.tar.gz"
    assert _run(source, tmp_path / "out", "--allow-partial") == 0
    _check(tmp_path / "out", "dev")
    _check(tmp_path / "out", "devtest")


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl", ".parquet"])
def test_tables_with_a_column_per_language(tmp_path: Path, suffix: str) -> None:
    rows = [
        {"id": n, "domain": "wikinews", "sentence_eng_Latn": en, "sentence_zho_Hans": zh}
        for n, (en, zh) in enumerate(ROWS)
    ]
    path = tmp_path / f"devtest{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        import pyarrow.parquet as parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        lines = ["\t".join(rows[0])] + ["\t".join(map(str, row.values())) for row in rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert _run(path, tmp_path / "out", "--allow-partial") == 0
    _check(tmp_path / "out", domain="wikinews")


def test_tables_with_a_row_per_language(tmp_path: Path) -> None:
    rows = [
        {"id": n, "iso_639_3": code[:3], "iso_15924": code[4:], "text": text, "domain": "wikibooks"}
        for n, pair in enumerate(ROWS)
        for code, text in (
            ("eng_Latn", pair[0]),
            ("cmn_Hans", pair[1]),
            ("cmn_Hant", "繁"),
            ("deu_Latn", "Satz"),
        )
    ]
    (tmp_path / "copy").mkdir()
    path = tmp_path / "copy" / "dev.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)), encoding="utf-8")
    assert _run(path.parent, tmp_path / "out", "--allow-partial") == 0
    _check(tmp_path / "out", "dev", "wikibooks")


def test_counts_are_those_of_flores_unless_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _texts(tmp_path / "copy")
    assert _run(tmp_path / "copy", tmp_path / "out", "--split", "dev") == 1
    assert "expected 997 sentences, got 5" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    full = [(f"Line {n}.", f"第{n}行。") for n in range(SENTENCES["dev"])]
    _texts(tmp_path / "full", rows=full)
    assert _run(tmp_path / "full", tmp_path / "out", "--split", "dev") == 0
    assert not (tmp_path / "out" / "flores_devtest.en").exists()


@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        ("absent", 2, "no such file"),
        ("unknown", 2, "unknown kind of file"),
        ("empty", 1, "no English and Chinese sentences"),
        ("unequal", 1, "5 English and 4 Chinese lines"),
        ("one", 1, "no zh file"),
        ("utf8", 1, "byte 1 is not"),
        ("broken", 1, "not a sound archive"),
        ("split", 2, "give --split"),
        ("columns", 1, "expected columns"),
    ],
)
def test_faults_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, code: int, words: str
) -> None:
    source = tmp_path / "copy"
    _texts(source)
    zh = source / "dev" / "zho_Hans.dev"
    if what == "absent":
        source = tmp_path / "none"
    elif what == "unknown":
        source = tmp_path / "copy.doc"
        source.write_text("x", encoding="utf-8")
    elif what == "empty":
        source = tmp_path / "empty"
        source.mkdir()
    elif what == "unequal":
        zh.write_text("".join(f"{b}\n" for _, b in ROWS[:4]), encoding="utf-8")
    elif what == "one":
        zh.unlink()
    elif what == "utf8":
        zh.write_bytes(b"\xff\n")
    elif what == "broken":
        source = tmp_path / "copy.zip"
        source.write_bytes(b"PK\x03\x04 not a zip")
    elif what == "split":
        source = tmp_path / "table.tsv"
        source.write_text("eng_Latn\tzho_Hans\na\t一\n", encoding="utf-8")
    elif what == "columns":
        source = tmp_path / "dev.tsv"
        source.write_text("a\tb\nx\ty\n", encoding="utf-8")
    assert _run(source, tmp_path / "out", "--allow-partial") == code
    error = capsys.readouterr().err
    assert (
        error.startswith("python -m kda.evaluation export-flores: error: ")
        and error.count("\n") == 1
        and words in error
    )


def test_locked_archive_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _texts(tmp_path / "copy")
    path = tmp_path / "copy.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in (tmp_path / "copy").rglob("*.*"):
            archive.write(file, file.relative_to(tmp_path / "copy").as_posix())

    def locked(self: zipfile.ZipFile, name: object, pwd: bytes | None = None) -> bytes:
        raise RuntimeError("File is encrypted, password required for extraction")

    monkeypatch.setattr(zipfile.ZipFile, "read", locked)
    assert _run(path, tmp_path / "out") == 1
    assert "--password" in capsys.readouterr().err
