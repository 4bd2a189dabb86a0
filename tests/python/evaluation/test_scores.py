"""sacreBLEU through the tool that the program calls: golden numbers, strata, missing packages."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from kda.evaluation.cli import main
from kda.evaluation.errors import EvaluationError
from kda.evaluation.scores import corpus_scores, score_section

ENGLISH = [
    ("The cat sat on the mat.", "The cat sat on a mat."),
    ("It is 3.5% cheaper, isn't it?", "It's 3.5% cheaper, is it not?"),
    ("Hello world", "Hello, world!"),
]
CHINESE = [
    ("今天天气很好，我们去公园。", "今天天气很好，我们去公园吧。"),
    ("他有3.5米高“巨人”", "他身高3.5米，是“巨人”。"),
    ("猫", "一只猫"),
]


def _scores(pairs: list[tuple[str, str]], target: str) -> dict[str, Any]:
    return corpus_scores([hyp for hyp, _ in pairs], [ref for _, ref in pairs], target)


@pytest.mark.parametrize(
    ("pairs", "target", "bleu", "chrf", "tokenizer"),
    [
        (ENGLISH, "en", 35.906959060, 64.409813691, "13a"),
        (CHINESE, "zh", 56.962888547, 56.094303038, "zh"),
        ([("the a b c d the", "the x y z w the")], "en", 9.652434877, 21.574074074, "13a"),
        ([("no match", "at XLL qqq")], "en", 0.0, None, "13a"),
        ([("", "the cat")], "en", 0.0, 0.0, "13a"),
        ([("Hello world", "Hello world")], "en", 0.0, 100.0, "13a"),
    ],
)
def test_golden_numbers(
    pairs: list[tuple[str, str]], target: str, bleu: float, chrf: float | None, tokenizer: str
) -> None:
    got = _scores(pairs, target)
    assert got["bleu"] == pytest.approx(bleu, abs=1e-6)
    if chrf is not None:
        assert got["chrf"] == pytest.approx(chrf, abs=1e-6)
    signature = f"nrefs:1|case:mixed|eff:no|tok:{tokenizer}|smooth:exp|version:"
    assert got["bleu_signature"].startswith(signature)
    assert got["chrf_signature"].startswith(
        "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:"
    )


def test_references_score_100_in_both_languages() -> None:
    for pairs, target in ((ENGLISH, "en"), (CHINESE, "zh")):
        same = [(ref, ref) for _, ref in pairs]
        got = _scores(same, target)
        assert got["bleu"] == pytest.approx(100.0)
        assert got["chrf"] == pytest.approx(100.0)
    # What the 13a tokenizer would say of the same Chinese text: another number altogether.
    from sacrebleu.metrics import BLEU

    wrong = BLEU().corpus_score([h for h, _ in CHINESE], [[r for _, r in CHINESE]]).score
    assert abs(wrong - 56.96) > 10


def test_strata_are_scored_alone() -> None:
    section = {
        "hypotheses": [hyp for hyp, _ in ENGLISH],
        "references": [ref for _, ref in ENGLISH],
        "target": "en",
        "strata": ["a", "b", "a"],
    }
    got = score_section(section)
    assert got["bleu"] == pytest.approx(35.906959060, abs=1e-6)
    assert list(got["strata"]) == ["a", "b"]
    alone = _scores([ENGLISH[1]], "en")
    assert got["strata"]["b"] == {key: alone[key] for key in ("bleu", "chrf")}


def test_unequal_counts_are_refused() -> None:
    with pytest.raises(EvaluationError, match="got 1 and 2"):
        corpus_scores(["a"], ["a", "b"], "en")
    with pytest.raises(EvaluationError, match="no sentence"):
        corpus_scores([], [], "en")


def test_request_to_answer(tmp_path: Path) -> None:
    request, answer = tmp_path / "request.json", tmp_path / "answer.json"
    sections = [
        {
            "hypotheses": [hyp for hyp, _ in pairs],
            "references": [ref for _, ref in pairs],
            "target": target,
            "strata": [],
        }
        for pairs, target in ((ENGLISH, "en"), (CHINESE, "zh"))
    ]
    request.write_text(json.dumps({"sections": sections}), encoding="utf-8")
    assert main(["score", str(request), str(answer)]) == 0
    got = json.loads(answer.read_text(encoding="utf-8"))
    assert [row["bleu"] for row in got["sections"]] == pytest.approx(
        [35.906959060, 56.962888547], abs=1e-6
    )
    first = answer.read_bytes()
    assert main(["score", str(request), str(answer)]) == 0
    assert answer.read_bytes() == first  # the language detector is seeded


def test_missing_request_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(tmp_path / "none.json"), str(tmp_path / "out.json")]) == 1
    error = capsys.readouterr().err
    assert (
        error.startswith("python -m kda.evaluation score: error: ")
        and error.count("\n") == 1
        and "none.json" in error
    )


def _without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)


def test_missing_sacrebleu_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _without(monkeypatch, "sacrebleu")
    assert main(["check"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "pip install sacrebleu" in error


def test_missing_langdetect_is_reported_as_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from kda.evaluation.detect import detected_languages

    _without(monkeypatch, "langdetect")
    assert detected_languages(["a"], "en") is None


def test_langdetect_is_seeded_and_joins_both_chineses() -> None:
    pytest.importorskip("langdetect")
    from kda.evaluation.detect import detected_languages

    sentences = [zh for _, zh in CHINESE] + ["這是一個繁體中文的句子，應該算作中文。", "123"]
    first = detected_languages(sentences, "zh")
    assert first is not None and first == detected_languages(sentences, "zh")
    assert first["counts"]["none"] == 1
    assert sum(first["counts"].values()) == len(sentences)
    assert first["match_rate"] == first["counts"]["zh"] / len(sentences)
