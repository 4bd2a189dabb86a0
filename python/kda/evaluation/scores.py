"""Corpus BLEU and chrF by sacreBLEU, with the signatures that make them comparable.

Chinese targets are tokenized with sacreBLEU's ``zh``, others with ``13a``: the default for both
would give Chinese a score of another meaning.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kda.evaluation.errors import EvaluationError

INSTALL = "sacrebleu is not installed: pip install sacrebleu (or pass --no-bleu)"


def require_sacrebleu() -> str:
    """Version of sacreBLEU; EvaluationError naming what to install where there is none."""
    try:
        import sacrebleu
    except ImportError as error:
        raise EvaluationError(INSTALL) from error
    return str(sacrebleu.__version__)


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], target: str
) -> dict[str, Any]:
    """BLEU and chrF2 of one system against one reference each; ``target`` is ``en`` or ``zh``."""
    require_sacrebleu()
    from sacrebleu.metrics import BLEU, CHRF

    if len(hypotheses) != len(references):
        raise EvaluationError(
            f"expected as many hypotheses as references, got {len(hypotheses)} and "
            f"{len(references)}"
        )
    if not references:
        raise EvaluationError("no sentence to score")
    bleu, chrf = BLEU(tokenize="zh" if target == "zh" else "13a"), CHRF()
    score = bleu.corpus_score(list(hypotheses), [list(references)])
    return {
        "bleu": score.score,
        "brevity_penalty": score.bp,
        "length_ratio": score.sys_len / score.ref_len if score.ref_len else 0.0,
        "chrf": chrf.corpus_score(list(hypotheses), [list(references)]).score,
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }


def score_section(section: dict[str, Any]) -> dict[str, Any]:
    """Scores of one section of a request: all its lines, and each stratum."""
    hypotheses, references, target = (
        section["hypotheses"],
        section["references"],
        section["target"],
    )
    result = corpus_scores(hypotheses, references, target)
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for number, stratum in enumerate(section.get("strata", [])):
        groups[stratum].append(number)
    result["strata"] = {}
    for stratum, numbers in groups.items():
        part = corpus_scores(
            [hypotheses[n] for n in numbers], [references[n] for n in numbers], target
        )
        result["strata"][stratum] = {key: part[key] for key in ("bleu", "chrf")}
    return result


def score_request(path: Path, out: Path) -> None:
    """Answer a request file of the program: ``{"sections": [...]}`` in, scores out, in order."""
    from kda.evaluation.detect import detected_languages

    try:
        request = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{path}: cannot read: {error}") from error
    answer: dict[str, Any] = {"sacrebleu": require_sacrebleu(), "sections": []}
    for section in request["sections"]:
        result = score_section(section)
        result["langdetect"] = detected_languages(section["hypotheses"], section["target"])
        answer["sections"].append(result)
    out.write_text(json.dumps(answer, ensure_ascii=False), encoding="utf-8")
