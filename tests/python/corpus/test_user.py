"""The user's own text: formats, languages, and files that are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kda.corpus.build import BuildOptions, build
from kda.corpus.user import UserOptions, detect_language

RunCli = Callable[..., tuple[int, str, str]]


def texts(folder: Path, lang: str) -> list[str]:
    """All documents of a language, held-out ones too."""
    both = [folder / f"pretrain.{lang}.txt", folder / "heldout.txt"]
    documents = "\n\n".join(path.read_text(encoding="utf-8").strip() for path in both).split("\n\n")
    return sorted(text for text in documents if text and detect_language(text) == lang)


def own(tmp_path: Path, name: str, data: str | bytes, **options: object) -> Path:
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    out = tmp_path / "out"
    build(BuildOptions(out=out, inputs=(path,), quiet=True, user=UserOptions(**options)))  # type: ignore[arg-type]
    return out


def test_txt_documents_and_languages(tmp_path: Path) -> None:
    out = own(
        tmp_path,
        "a.txt",
        "First line.\nSecond line.\n\n\n第一篇中文。\r\n还有一行。\n \nAnother one.",
    )
    assert texts(out, "en") == ["Another one.", "First line.\nSecond line."]
    assert texts(out, "zh") == ["第一篇中文。\n还有一行。"]


def test_long_text_without_empty_lines_is_cut_into_documents(tmp_path: Path) -> None:
    lines = [f"This is line number {i} of a long book." for i in range(4000)]
    out = own(tmp_path, "book.txt", "\n".join(lines))
    found = texts(out, "en")
    assert len(found) == 3
    assert sorted("\n".join(found).split("\n")) == sorted(lines)


def test_jsonl_text_with_title(tmp_path: Path) -> None:
    rows = [{"title": "月亮", "text": "月亮绕着地球转。"}, {"text": "No title here."}]
    out = own(tmp_path, "a.jsonl", "\n".join(json.dumps(row) for row in rows))
    assert texts(out, "zh") == ["月亮\n月亮绕着地球转。"]
    assert texts(out, "en") == ["No title here."]


def test_jsonl_pairs_hold_out_and_keep_their_direction(tmp_path: Path) -> None:
    rows = [
        {
            "src": f"Sentence {i} is about item {i * 7}.",
            "tgt": f"第{i}句讲的是{i * 7}号。",
        }
        for i in range(600)
    ]
    rows[0]["direction"] = "en2zh"
    rows.append({"src": "只有中文", "tgt": "也是中文"})
    out = own(
        tmp_path,
        "p.jsonl",
        "\n".join(json.dumps(row, ensure_ascii=False) for row in rows),
    )
    sft = [json.loads(line) for line in (out / "sft.train.jsonl").read_text().splitlines()]
    test = (out / "eval" / "test.en").read_text().splitlines()
    dev = (out / "eval" / "dev.en").read_text().splitlines()
    assert {row["direction"] for row in sft} == {"en2zh"}
    assert 3 <= len(test) + len(dev) <= 30
    assert len(sft) + len(test) + len(dev) == 600
    assert not {row["src"] for row in sft} & {*test, *dev}
    manifest = json.loads((out / "MANIFEST.json").read_text())
    assert manifest["sources"]["input"]["counts"]["pairs_not_zh_en"] == 1


def test_parquet_and_text_column(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"body": ["月亮绕着地球转。", None, "The moon."], "id": [1, 2, 3]})
    pq.write_table(table, path)
    out = own(tmp_path, "a.parquet", path.read_bytes(), text_column="body")
    assert texts(out, "zh") == ["月亮绕着地球转。"]
    assert texts(out, "en") == ["The moon."]


def test_traditional_is_kept_unless_asked(tmp_path: Path) -> None:
    assert texts(own(tmp_path, "a.txt", "這個資料夾裡沒有檔案。"), "zh") == [
        "這個資料夾裡沒有檔案。"
    ]
    out = own(tmp_path, "a.txt", "這個資料夾裡沒有檔案。", simplify=True)
    assert texts(out, "zh") == ["这个资料夹里没有档案。"]


def test_bytes_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = own(
        tmp_path,
        "a.txt",
        b"\xef\xbb\xbfGood line.\nbad \xff\xfe line\nnul \x00 line\nLast line.\n",
    )
    assert texts(out, "en") == ["Good line.\nLast line."]
    assert "2 lines with NUL or invalid UTF-8 dropped" in capsys.readouterr().err


def test_very_long_line_is_split(tmp_path: Path) -> None:
    out = own(tmp_path, "a.txt", "这是一句很长的话，" * 556)  # 5,004 characters, no full stop
    (document,) = texts(out, "zh")
    assert all(len(line.encode()) <= 4000 for line in document.split("\n"))
    assert document.replace("\n", "") == "这是一句很长的话，" * 556


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"", "no usable text found"),
        ("a.txt", b" \n\n\t\n", "no usable text found"),
        ("a.jsonl", b'{"text": "ok"}\n{"text": \n', "a.jsonl:2: not a JSON object"),
        ("a.jsonl", b"[1, 2]\n", "a.jsonl:1: expected a JSON object, got list"),
        (
            "a.jsonl",
            b'{"body": "x"}\n',
            "expected field text (and title), or src and tgt; got body",
        ),
        ("a.jsonl", b'{"text": 5}\n', "a.jsonl:1: text: expected a string, got int"),
        (
            "a.jsonl",
            b'{"src": "a", "tgt": "b", "direction": "up"}\n',
            "expected en2zh or zh2en, got 'up'",
        ),
        ("a.jsonl", b"[" * 100_000, "a.jsonl:1: not a JSON object"),
        ("a.parquet", b"PAR1 this is no parquet file PAR1", "cannot read parquet"),
        ("a.parquet", b"", "cannot read parquet"),
    ],
)
def test_bad_file_is_one_clear_line(
    tmp_path: Path, run_cli: RunCli, name: str, data: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    code, _, err = run_cli(
        "build", "--input", tmp_path / name, "--out", tmp_path / "out", "--quiet"
    )
    assert code == 1
    assert message in err
    assert err.startswith("python -m kda.corpus build: error: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_parquet_without_the_column(tmp_path: Path, run_cli: RunCli) -> None:
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "a.parquet")
    code, _, err = run_cli("build", "--input", tmp_path / "a.parquet", "--out", tmp_path / "o")
    assert code == 1
    assert "no column text; columns: a (choose with --text-column)" in err


def test_output_does_not_depend_on_jobs(tmp_path: Path) -> None:
    for number in range(4):
        lines = [f"File {number} has a sentence {i}.\n" for i in range(200)]
        (tmp_path / f"{number}.txt").write_text("\n".join(lines))
    outs = [tmp_path / "a" / "out", tmp_path / "b" / "out"]
    for jobs, out in zip((1, 2), outs, strict=True):
        inputs = tuple(sorted(tmp_path.glob("*.txt")))
        build(BuildOptions(out=out, inputs=inputs, jobs=jobs, quiet=True))
    for path in outs[0].rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (outs[1] / path.relative_to(outs[0])).read_bytes()


def test_detect_language() -> None:
    assert detect_language("这是中文，里面有 two words。") == "zh"
    assert detect_language("Mostly English with 一点 in between the words") == "en"
    assert detect_language("12345 !!!") is None
