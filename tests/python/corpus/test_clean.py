"""Cleaning rules, each with the case that made it necessary."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda.corpus import clean

GOOD = ("Please open the window before you leave.", "请在离开之前把窗户打开。")


def test_good_pair_is_kept_unchanged() -> None:
    assert clean.clean_pair(*GOOD) == GOOD


@pytest.mark.parametrize(
    ("en", "zh", "expected"),
    [
        (
            "_Open the selected file",
            "打开选中的文件(_O)",
            ("Open the selected file", "打开选中的文件"),
        ),
        (
            "Save &As a new file",
            "另存为新的文件（&A）",
            ("Save As a new file", "另存为新的文件"),
        ),
        (
            "~Keep the old name",
            "~保留原来的名称",
            ("Keep the old name", "保留原来的名称"),
        ),
        (
            "E_xit the program now",
            "立即退出程序(_X)...",
            ("Exit the program now", "立即退出程序..."),
        ),
    ],
)
def test_accelerators_are_dropped(en: str, zh: str, expected: tuple[str, str]) -> None:
    assert clean.clean_pair(en, zh) == expected


def test_marks_that_are_text_stay() -> None:
    assert clean.drop_accelerators("AT&T bought it for ~10", "美国电报公司花了大约十块") == (
        "AT&T bought it for ~10",
        "美国电报公司花了大约十块",
    )
    assert clean.drop_lone_accelerator("a snake_case name") == "a snake_case name"


@pytest.mark.parametrize(
    ("en", "zh", "rule"),
    [
        ("Cannot open file %s here", "无法打开文件 %s", "placeholder"),
        (
            "The %'d selected items will move",
            "选中的 %'d 个项目将被移动",
            "placeholder",
        ),
        ("Hello {name} my dear friend", "你好 {name} 我亲爱的朋友", "placeholder"),
        ("Welcome <npcname> to our camp", "欢迎<npcname>来到我们的营地", "placeholder"),
        (
            "See https://example.org for the details",
            "详情请看 https://example.org 网页",
            "url_or_option",
        ),
        (
            "Use --force to overwrite the file",
            "使用 --force 覆盖文件吧",
            "url_or_option",
        ),
        ("Use -f to overwrite the file", "使用 -f 覆盖那个文件", "url_or_option"),
        ("Open the file", "打开这个文件", "too_few_words"),
        ("one two three four five", "一二三", "too_little_han"),
        ("Same words on both sides", "Same words on both sides", "identical_sides"),
        ("This side has 汉字 in it already", "这一边已经有汉字了", "han_in_english"),
        ("There are 12 apples in the box", "盒子里有 21 个苹果呢", "digits_differ"),
        (
            "one two three four five six seven eight nine ten",
            "一二三四",
            "length_ratio",
        ),
        ("a b c d", "这一句话比另一边的英文实在是长得太多太多了", "length_ratio"),
        (
            "You can open the small door now",
            "您可以使用 Firefox 浏览器打开",
            "latin_differs",
        ),
        (
            "He writes the letters in the house",
            "他在屋裡寫這些給朋友們的書信",
            "traditional",
        ),
        ("A broken \ufffd line of some text", "一行坏掉的文字内容", "broken_bytes"),
        ("A NUL \0 line of some text", "一行坏掉的文字内容", "broken_bytes"),
    ],
)
def test_rule_rejects(en: str, zh: str, rule: str) -> None:
    assert clean.clean_pair(en, zh) == rule


def test_fullwidth_digits_count_as_digits() -> None:
    assert clean.clean_pair("There are 12 apples in it", "里面有１２个苹果呢") == (
        "There are 12 apples in it",
        "里面有１２个苹果呢",
    )


def test_one_traditional_character_is_allowed() -> None:
    pair = (
        "The book was written by him long ago",
        "这本书是他很久以前所著，叫做《於陵子》",
    )
    assert clean.clean_pair(*pair) == pair


def test_markup_goes_text_stays() -> None:
    assert clean.clean_pair(
        "Press <b>Enter</b> to go &amp; stop.", "按 <b>Enter</b> 键继续或停止。"
    ) == (
        "Press Enter to go & stop.",
        "按 Enter 键继续或停止。",
    )


def test_full_width_punctuation_survives() -> None:
    text = "，？！（１２３）ＡＢＣ…﹏"
    assert clean.normalise(text) == text


def test_nfc_and_white_space() -> None:
    assert clean.normalise("cafe\u0301  a\t b\r\n c") == "caf\u00e9 a b c"
    assert clean.normalise("第一行\n第二行， 第三行") == "第一行第二行，第三行"
    assert clean.normalise("\ufeff零\u200b宽\u00ad字\x1b[32m符\x1b[m") == "零宽字符"


@given(st.text())
def test_normalise_is_stable_and_nfc(text: str) -> None:
    once = clean.normalise(text)
    assert clean.normalise(once) == once
    assert once == once.strip()
    assert "\n" not in once
    assert unicodedata.is_normalized("NFC", once)


@given(st.text(max_size=3000), st.integers(min_value=16, max_value=400))
def test_split_long_keeps_the_text(text: str, limit: int) -> None:
    line = clean.normalise(text)
    pieces = clean.split_long(line, limit)
    assert all(len(piece.encode()) <= limit for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(line.split())


def test_split_long_cuts_after_sentences() -> None:
    line = "第一句话很短。" * 700  # 14,700 bytes, 4,900 characters
    pieces = clean.split_long(line)
    assert "".join(pieces) == line
    assert all(len(piece.encode()) <= 4000 and piece.endswith("。") for piece in pieces)


def test_monolingual_lines() -> None:
    assert clean.monolingual_line("这是一个普通的句子。", "zh") == "这是一个普通的句子。"
    assert clean.monolingual_line("這個資料夾裡沒有檔案。", "zh") == "这个资料夹里没有档案。"
    assert clean.monolingual_line("ls -l /usr/bin 列出", "zh") is None
    assert clean.monolingual_line("The file was not found.", "en") == "The file was not found."
    assert clean.monolingual_line("0x7f 12 34 56 78 90", "en") is None
    assert clean.monolingual_line("Mail somebody@example.org for help now", "en") is None
