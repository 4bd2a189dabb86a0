"""Cleaning of one string or one pair. Every rule has a name that the manifest counts.

NFC, never NFKC: NFKC would turn the full-width comma of Chinese text into an ASCII one, and a
model trained on the result could not write it any more.
"""

from __future__ import annotations

import html
import re
import unicodedata
from functools import lru_cache
from typing import Any

HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"
_CJK = HAN + "\u3000-\u303f\uff00-\uff60\u2018-\u201d\u2026"
_HAN_RE = re.compile(f"[{HAN}]")
_SPACE_IN_CJK_RE = re.compile(rf"(?<=[{HAN}\u3000-\u303f\uff00-\uff60])\s+(?=[{_CJK}])")
_WORD_RE = re.compile(r"[A-Za-z]+(?:['\u2019-][A-Za-z]+)*|\d+(?:[.,]\d+)*")
_BROKEN_RE = re.compile("[\x00\ufffd\ufffe\uffff\ud800-\udfff]")
_ANSI_RE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]")
# Zero-width and control characters carry no text; tab, newline and carriage return are space.
_CONTROL_RE = re.compile(
    "[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]"
)
# Markup that only decorates; any other <...> stands for a value and is a placeholder.
_TAG_RE = re.compile(
    r"</?(?:a|b|i|u|s|p|q|br|hr|em|tt|li|ul|ol|dl|dt|dd|td|tr|th|sub|sup|big|small|strong|span|"
    r"code|kbd|var|pre|div|font|cite|table|tbody|thead|center|html|body|head|nobr|qt|para|icode|"
    r"filename|command|emphasis|application|literal|interface|resource|title|link|gui|guilabel|"
    r"header|bold|italic|ref|img|info|good|bad|neutral|color_[a-z_]+|color|h[1-6])"
    r"(?:[\s=][^<>]{0,300})?/?>",
    re.IGNORECASE,
)
# printf, Qt, Python and shell values: %s, %2$d, %(name)s, %1, %%, {0}, ${x}, <name>, &name;
_PLACEHOLDER_RE = re.compile(
    r"%(?:\d+\$)?[-+ #0']*\d*(?:\.\d+)?(?:hh|h|ll|l|z|j|t|q|I64)?[A-Za-z](?![A-Za-z])"
    r"|%\d|%\(\w+\)|%%|%[{<]|%[A-Z_]{2,}%|\{[^{}]{0,40}\}|[{}]|\$\{?\w|<[^<>]{1,60}>|\[%"
    r"|&\w+;|@\w+@|\\[nt\"]"
)
# The same for single lines of running text, plus mail addresses and box drawing.
_MESSY_RE = re.compile(
    r"%(?:\d+\$|\(\w+\))?[-+ #0']*[\d.]*[sdiufgxXlz](?![A-Za-z])|%\d"
    r"|\{\w*\}|\$\{|<[^<>]{1,60}>|@\w+@|\w@\w+\.\w|[\u2500-\u257f]"
)
_TECHNICAL_RE = re.compile(
    r"https?:|ftp:|www\.|\w@\w+\.\w|(?<![\w-])--?[a-z][\w-]*"
    r"|(?<!\w)/(?:usr|etc|var|home|bin|dev|proc|sys|tmp|lib)\b"
    r"|\w\(\)|::|->|=>|==|!=|&&|\|\||[A-Za-z]+_[A-Za-z]+",
    re.ASCII,
)
_ACCELERATOR_TAIL_RE = re.compile(r"\s*[(\uff08][_&~][A-Za-z0-9][)\uff09]")
_ACCELERATOR_RE = re.compile(r"[_&~](?=[A-Za-z0-9\u4e00-\u9fff])")
_LONE_ACCELERATOR_RE = re.compile(r"(?<![\w&~/.-])[_&~](?=[A-Za-z]{2})")
_DIGITS_RE = re.compile(r"\d+")
_FULLWIDTH_DIGITS = {0xFF10 + digit: 0x30 + digit for digit in range(10)}
_LATIN_TOKEN_RE = re.compile(r"[A-Za-z][A-Za-z0-9.+-]{2,}")
_CLOSE_RE = re.compile(r"[.!?:]['\")\]\u201d\u2019]?$")

MIN_EN_WORDS, MAX_EN_WORDS, MIN_HAN, MAX_HAN = 4, 160, 4, 400
MIN_HAN_PER_WORD, MAX_HAN_PER_WORD = 0.5, 4.0


def count_han(text: str) -> int:
    return len(_HAN_RE.findall(text))


def english_words(text: str) -> list[str]:
    """Words and numbers of an English text, as the length rules count them."""
    return _WORD_RE.findall(text)


def decode(data: bytes, name: str, strict: bool = False) -> str:
    """UTF-8 text; bytes that are none become U+FFFD, which a later rule rejects by the line."""
    from kda.corpus.errors import CorpusError

    if data.startswith(b"\xef\xbb\xbf"):
        data = data[3:]
    try:
        return data.decode("utf-8", "strict" if strict else "replace")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{name}: not UTF-8 at byte {error.start}") from error


def broken(text: str) -> bool:
    """NUL, undecodable bytes and lone surrogates: the line goes, it is not repaired."""
    return bool(_BROKEN_RE.search(text))


def normalise(text: str) -> str:
    """NFC, no control or zero-width characters, white space collapsed; punctuation untouched.

    White space between two Chinese characters is line wrapping and goes.
    """
    text = _CONTROL_RE.sub("", _ANSI_RE.sub("", text))
    text = " ".join(unicodedata.normalize("NFC", text).split())
    return _SPACE_IN_CJK_RE.sub("", text)


def strip_markup(text: str) -> str:
    """Remove decorating tags and resolve entities; ``<name>``-like values stay (placeholder)."""
    text = _TAG_RE.sub("", text)
    if "&" in text:
        text = html.unescape(text)
        text = _TAG_RE.sub("", text)
    return text


def drop_accelerators(en: str, zh: str) -> tuple[str, str]:
    """Remove keyboard accelerators: ``(_X)``, or ``_X``, ``&X``, ``~X`` that both sides show.

    On one side alone only a mark before a word goes (``AT&T``, ``snake_case``, ``~10`` stay).
    """
    tail = _ACCELERATOR_TAIL_RE.search(zh)
    if tail:
        zh = _ACCELERATOR_TAIL_RE.sub("", zh)
        return _ACCELERATOR_RE.sub("", en, count=1), zh
    marks_en, marks_zh = _ACCELERATOR_RE.findall(en), _ACCELERATOR_RE.findall(zh)
    if len(marks_en) == 1 and marks_en == marks_zh:
        return _ACCELERATOR_RE.sub("", en), _ACCELERATOR_RE.sub("", zh)
    return drop_lone_accelerator(en), drop_lone_accelerator(zh)


def drop_lone_accelerator(text: str) -> str:
    """``drop_accelerators`` for one side alone: ``(_X)``, or a mark before the first word."""
    text = _ACCELERATOR_TAIL_RE.sub("", text)
    return _LONE_ACCELERATOR_RE.sub("", text, count=1)


@lru_cache(maxsize=1)
def _traditional() -> tuple[Any, frozenset[str]]:
    """Converter and the characters that it changes (so most lines never reach it)."""
    try:
        import opencc
    except ImportError as error:
        from kda.corpus.errors import CorpusError

        raise CorpusError("opencc: not installed; pip install opencc") from error
    converter = opencc.OpenCC("t2s")
    chars = [chr(code) for code in (*range(0x3400, 0x4DC0), *range(0x4E00, 0xA000))]
    changed = converter.convert("\n".join(chars)).split("\n")
    return converter, frozenset(a for a, b in zip(chars, changed, strict=True) if a != b)


def to_simplified(text: str) -> tuple[str, int]:
    """Simplified text and the number of characters that differ from ``text``."""
    converter, changing = _traditional()
    if changing.isdisjoint(text):
        return text, 0
    simple = converter.convert(text)
    return simple, sum(a != b for a, b in zip(text, simple, strict=False))


def is_traditional(text: str) -> bool:
    """Two or more traditional characters, at least 2 % of the text.

    One alone is often right in simplified text too (a name, a quotation, ``著``).
    """
    _, changed = to_simplified(text)
    return changed >= 2 and changed * 50 >= count_han(text)


def digits(text: str) -> list[str]:
    """Digit runs in order of value, full-width digits as ASCII ones."""
    return sorted(_DIGITS_RE.findall(text.translate(_FULLWIDTH_DIGITS)))


def reject_pair(en: str, zh: str) -> str | None:
    """Name of the first rule that a cleaned pair breaks, or None when it may stay."""
    if broken(en) or broken(zh):
        return "broken_bytes"
    if en == zh:
        return "identical_sides"
    han, words = count_han(zh), len(english_words(en))
    if han < MIN_HAN:
        return "too_little_han"
    if count_han(en):
        return "han_in_english"
    if words < MIN_EN_WORDS:
        return "too_few_words"
    if words > MAX_EN_WORDS or han > MAX_HAN:
        return "too_long"
    if _PLACEHOLDER_RE.search(en) or _PLACEHOLDER_RE.search(zh):
        return "placeholder"
    if _TECHNICAL_RE.search(en) or _TECHNICAL_RE.search(zh):
        return "url_or_option"
    if not MIN_HAN_PER_WORD <= han / words <= MAX_HAN_PER_WORD:
        return "length_ratio"
    if digits(en) != digits(zh):
        return "digits_differ"
    if not _latin_agrees(en, zh):
        return "latin_differs"
    if is_traditional(zh):
        return "traditional"
    return None


def _latin_agrees(en: str, zh: str) -> bool:
    """Latin words kept in the Chinese side must come from the English side (drift guard)."""
    tokens = {token.lower() for token in _LATIN_TOKEN_RE.findall(zh)}
    if not tokens:
        return True
    lower = en.lower()
    return 2 * sum(token in lower for token in tokens) >= len(tokens)


def clean_pair(en: str, zh: str) -> tuple[str, str] | str:
    """Cleaned (en, zh), or the name of the rule that rejects the pair."""
    en, zh = strip_markup(en), strip_markup(zh)
    en, zh = drop_accelerators(en, zh)
    en, zh = normalise(en), normalise(zh)
    reason = reject_pair(en, zh)
    return reason if reason else (en, zh)


def dedupe_key(en: str) -> str:
    """English with case, punctuation and spacing ignored: what counts as the same sentence."""
    return " ".join(english_words(en.lower()))


def ends_sentence(en: str) -> bool:
    """Whether an English text closes like a sentence (``. ! ? :``)."""
    return bool(_CLOSE_RE.search(en))


def monolingual_line(text: str, lang: str) -> str | None:
    """Cleaned line for pretraining text, or None when it is no text of that language.

    Weaker than the rules for pairs: a document may name files and options, but a line must be
    mostly words. Traditional Chinese is converted, not dropped.
    """
    line = normalise(strip_markup(text))
    if broken(line) or not line:
        return None
    han = count_han(line)
    letters = sum(char.isalpha() and char.isascii() for char in line)
    if lang == "zh":
        if han < MIN_HAN or han * 2 < letters or _MESSY_RE.search(line):
            return None
        simple, changed = to_simplified(line)
        return simple if changed >= 2 and changed * 50 >= han else line
    if han * 20 > letters or len(english_words(line)) < 3 or letters * 2 < len(line):
        return None
    return None if _MESSY_RE.search(line) else line


def split_long(line: str, limit_bytes: int = 4000) -> list[str]:
    """Pieces of at most ``limit_bytes`` UTF-8 bytes, cut after sentence ends where possible.

    Tokenizer trainers skip very long lines silently; a document keeps its text this way.
    """
    if len(line.encode()) <= limit_bytes:
        return [line]
    pieces: list[str] = []
    current = ""
    size = 0
    for part in re.split(r"(?<=[\u3002\uff01\uff1f\uff1b])|(?<=[.!?;])\s", line):
        for chunk in _fixed_chunks(part, limit_bytes):
            length = len(chunk.encode()) + 1
            if current and size + length > limit_bytes:
                pieces.append(current)
                current, size = "", 0
            glue = " " if current and current[-1].isascii() else ""
            current += glue + chunk
            size += length
    if current:
        pieces.append(current)
    return [piece.strip() for piece in pieces if piece.strip()]


def _fixed_chunks(text: str, limit_bytes: int) -> list[str]:
    if len(text.encode()) <= limit_bytes - 1:
        return [text] if text else []
    width = max((limit_bytes - 1) // 4, 1)  # a character has at most 4 bytes
    return [text[start : start + width] for start in range(0, len(text), width)]
