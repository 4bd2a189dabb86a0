"""What langdetect says about a list of sentences: reported beside the rule by script.

It is a statistical detector that draws at random, so it is seeded here; it takes one in five
correct Chinese sentences for Korean, Vietnamese and others, so nothing is decided by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

SEED = 0


def detected_languages(sentences: Sequence[str], target: str) -> dict[str, Any] | None:
    """Share of ``sentences`` detected as ``target`` (``en`` or ``zh``) and counts by code.

    zh-cn and zh-tw count as zh; a sentence without features is ``none``. None where langdetect is
    not installed.
    """
    try:
        from langdetect import DetectorFactory, detect
        from langdetect.lang_detect_exception import LangDetectException
    except ImportError:
        return None
    DetectorFactory.seed = SEED
    counts: Counter[str] = Counter()
    for sentence in sentences:
        try:
            code = detect(sentence)
        except LangDetectException:
            code = "none"
        counts["zh" if code.startswith("zh") else code] += 1
    return {
        "match_rate": counts[target] / len(sentences) if sentences else 0.0,
        "counts": dict(counts.most_common()),
        "seed": SEED,
    }
