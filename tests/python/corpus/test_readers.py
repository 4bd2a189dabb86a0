"""Readers: real layouts in small, and bytes that are wrong on purpose."""

from __future__ import annotations

import gzip
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kda.corpus import clean
from kda.corpus.errors import CorpusError
from kda.corpus.extract import deb_members, declared_licence, find_twins
from kda.corpus.readers import catalog, descriptions, markup, plain

MakeMo = Callable[..., bytes]
MESSAGES = [
    (b"", b"Content-Type: text/plain; charset=UTF-8\n"),
    (b"menu\x04Open the selected old file", "打开选中的旧文件".encode()),
    (
        b"One apple is here now\0%d apples are here now",
        "这里有苹果\0这里现在有很多苹果".encode(),
    ),
    (
        b"Two apples are here now\0Many apples are here now",
        "这里现在有很多苹果".encode(),
    ),
    (b"Nothing was translated in this one", b""),
]


@pytest.mark.parametrize("order", ["<", ">"])
def test_mo_context_plural_and_untranslated(make_mo: MakeMo, order: str) -> None:
    rows = dict(catalog.read_mo(make_mo(MESSAGES, order), "x.mo"))
    assert rows["Open the selected old file"] == "打开选中的旧文件"
    assert rows["Many apples are here now"] == "这里现在有很多苹果"
    assert rows["%d apples are here now"] == "这里现在有很多苹果"
    assert "Nothing was translated in this one" not in rows
    assert "" not in rows


def test_catalog_pairs_and_counts(make_mo: MakeMo) -> None:
    extract = catalog.read({"zh_CN/LC_MESSAGES/x.mo": make_mo(MESSAGES)})
    assert [pair.en for pair in extract.pairs] == [
        "Many apples are here now",
        "Open the selected old file",
    ]
    assert extract.counts["placeholder"] == 1
    assert extract.counts["messages"] == 3


@pytest.mark.parametrize("size", [0, 3, 27, 40, 60])
def test_truncated_mo_is_one_clear_line(make_mo: MakeMo, size: int) -> None:
    with pytest.raises(CorpusError, match=r"x\.mo: (not a|truncated) \.mo file") as caught:
        list(catalog.read_mo(make_mo(MESSAGES)[:size], "x.mo"))
    assert "\n" not in str(caught.value)


def test_mo_with_wrong_offsets_or_counts(make_mo: MakeMo) -> None:
    good = bytearray(make_mo(MESSAGES))
    good[8:12] = (2**31).to_bytes(4, "little")
    with pytest.raises(CorpusError, match="truncated"):
        list(catalog.read_mo(bytes(good), "x.mo"))
    with pytest.raises(CorpusError, match="magic number"):
        list(catalog.read_mo(b"\0" * 64, "x.mo"))


def test_damaged_mo_never_escapes_as_another_error(make_mo: MakeMo) -> None:
    source, chance = make_mo(MESSAGES), random.Random(1)
    for _ in range(500):
        data = bytearray(source)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            catalog.read({"x.mo": bytes(data)})
        except CorpusError as error:
            assert "x.mo" in str(error)


PAGE = """<html><head><title>no</title></head><body><h1>{0}</h1><pre>code</pre>
<p>{1}</p><ul><li>{2} <b>{3}</b></li></ul></body></html>"""


def test_html_blocks_skip_code_and_keep_tails() -> None:
    root = markup.parse_html(
        b"<body><p>one <script>x</script>two<br>three</p>tail"
        b"<div>four<pre>no</pre>five</div></body>",
        "x.html",
    )
    assert [" ".join(block.text.split()) for block in markup.blocks(root)] == [
        "one two three",
        "tail",
        "fourfive",
    ]


def test_html_twins_align_same_structure() -> None:
    files = {
        "a.en.html": PAGE.format(
            "The first of all", "A longer line of text here", "And the last", "one"
        ).encode(),
        "a.zh-cn.html": PAGE.format(
            "所有之中的第一个", "这里是一行更长的文字", "以及最后", "一个"
        ).encode(),
    }
    extract = markup.read_twins(files, [("a.en.html", "a.zh-cn.html")])
    assert [(pair.en, pair.zh) for pair in extract.pairs] == [
        ("The first of all", "所有之中的第一个"),
        ("A longer line of text here", "这里是一行更长的文字"),
        ("And the last one", "以及最后一个"),
    ]
    assert extract.counts["same_structure"] == 1


def test_html_twins_align_around_an_extra_block() -> None:
    english = (
        "<body><h1>A title of the page</h1><p>First line of the text</p>"
        "<h2>Then another title here</h2></body>"
    )
    chinese = (
        "<body><h1>页面的标题</h1><ul><li>只有中文才有的一项</li></ul>"
        "<p>正文的第一行文字</p><h2>然后是另一个标题</h2></body>"
    )
    extract = markup.read_twins({"e": english.encode(), "z": chinese.encode()}, [("e", "z")])
    assert [(pair.en, pair.zh) for pair in extract.pairs] == [
        ("A title of the page", "页面的标题"),
        ("First line of the text", "正文的第一行文字"),
        ("Then another title here", "然后是另一个标题"),
    ]


def test_html_by_id_ignores_order() -> None:
    english = (
        '<body><div id="DisplayArea"><p id="a">This is the first one</p>'
        '<p id="b">This is the second one</p></div></body>'
    )
    chinese = (
        '<body><p>菜单里的文字内容</p><div id="DisplayArea"><p id="b">这是其中的第二个</p>'
        '<p id="a">这是其中的第一个</p></div></body>'
    )
    extract = markup.read_by_id({"e": english.encode(), "z": chinese.encode()}, [("e", "z")])
    assert {pair.en: pair.zh for pair in extract.pairs} == {
        "This is the first one": "这是其中的第一个",
        "This is the second one": "这是其中的第二个",
    }


def test_mallard_skips_credits_and_untranslated() -> None:
    page = (
        '<page xmlns="http://projectmallard.org/1.0/"><info><credit><name>A B C D</name></credit>'
        "<desc>{0}</desc></info><title>{1}</title><p>Not translated in this case</p></page>"
    )
    files = {
        "C/a.page": page.format("What this page is about", "How to open it").encode(),
        "zh/a.page": page.format("本页面的内容是什么", "怎样把它打开").encode(),
    }
    extract = markup.read_twins(files, [("C/a.page", "zh/a.page")], xml=True)
    assert [pair.zh for pair in extract.pairs] == ["本页面的内容是什么", "怎样把它打开"]
    assert extract.counts["no_chinese"] == 1


def test_hostile_markup() -> None:
    deep = b"<div>" * 20_000 + b"text" + b"</div>" * 20_000
    assert isinstance(markup.blocks(markup.parse_html(deep, "deep.html")), list)
    bomb = (
        b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
        b"<page><p>&b; text</p></page>"
    )
    assert "aaaaaaaaaa" not in "".join(b.text for b in markup.blocks(markup.parse_xml(bomb, "x")))
    secret = b'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/hostname">]><page><p>&f;</p></page>'
    assert markup.blocks(markup.parse_xml(secret, "x.page")) == []
    for data in (b"", b"   ", b"\0\0\0"):
        try:
            found = markup.blocks(markup.parse_html(data, "x.html"))
            assert all(clean.broken(block.text) for block in found)
        except CorpusError as error:
            assert "x.html: cannot parse HTML" in str(error)
        with pytest.raises(CorpusError, match=r"x\.page: cannot parse XML"):
            markup.parse_xml(data, "x.page")


def test_fortunes_strip_colours_and_join_wrapped_lines() -> None:
    wrapped = "这一行文字在终端上已经写满了所以必须要折到下一行去继续写完这句话才算是完"
    poem = "\x1b[32m静夜思（李白）\x1b[m\n床前明月光，\n疑是地上霜。\n"
    data = f"{poem}%\n{wrapped}\n整的一句话。\n".encode()
    extract = plain.read_fortunes({"tang": data}, "zh")
    assert [document.lines for document in extract.documents] == [
        ("静夜思（李白）", "床前明月光，", "疑是地上霜。"),
        (f"{wrapped}整的一句话。",),
    ]


def test_crawl_joins_on_keys() -> None:
    english = b"%%%%\nTemple\n\nThe temple is a place\nof peace and quiet.\n%%%%\nCave\n\nA cave.\n"
    text = "%%%%\nTemple\n\n众神殿是一个宁静\n而和平的地方。\n%%%%\nOnly here\n\n只有中文的条目。\n"
    chinese = text.encode()
    extract = plain.read_crawl({"descript/a.txt": english, "descript/zh/a.txt": chinese})
    assert [(pair.en, pair.zh) for pair in extract.pairs] == [
        ("The temple is a place of peace and quiet.", "众神殿是一个宁静而和平的地方。")
    ]


def test_man_page_source_becomes_paragraphs() -> None:
    source = (
        ".TH LS 1\n.SH 名称\nls \\- 列出目录的内容\n.PP\n使用\n.B ls\n可以\\fB列出\\fR文件。\n"
        ".nf\n代码\n.fi\n"
        ".TP\n\\fB\\-a\\fR\n不隐藏任何以点开头的项目。\n"
    )
    text = [" ".join(part.split()) for part in plain.man_paragraphs(source)]
    assert text == [
        "ls - 列出目录的内容",
        "使用 ls 可以列出文件。",
        "-a 不隐藏任何以点开头的项目。",
    ]
    assert plain.man_paragraphs(".Dd January 1\n.Nm x\ntext\n") == []


def test_bad_gzip_is_one_clear_line() -> None:
    whole = gzip.compress(b"text " * 100)
    for data in (whole[:-5], b"", b"plain"):
        with pytest.raises(CorpusError, match=r"x\.gz: bad gzip data"):
            plain.gunzip(data, "x.gz")
    assert plain.gunzip(whole, "x.gz") == b"text " * 100


def test_gzip_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "_MAX_UNPACKED", 1000)
    with pytest.raises(CorpusError, match="unpacks to more than 1000 bytes"):
        plain.gunzip(gzip.compress(b"a" * 5000), "x.gz")


def test_descriptions_join_and_keep_translated_english_out() -> None:
    english = (
        "Package: a\nDescription-md5: 11\nDescription-en: small tool for the desktop\n"
        " This tool shows the time.\n .\n It needs no network at all.\n\n"
        "Package: b\nDescription-md5: 22\nDescription-en: another tool without translation\n"
        " It is here.\n"
    )
    chinese = (
        "Package: a\nDescription-md5: 11\nDescription-zh_CN: 桌面上的小工具\n"
        " 这个工具显示现在的时间。\n .\n 它完全不需要网络。\n"
    )
    extract = descriptions.read({"en": english.encode()}, {"zh": chinese.encode()})
    assert [pair.zh for pair in extract.pairs] == [
        "桌面上的小工具",
        "这个工具显示现在的时间。",
        "它完全不需要网络。",
    ]
    assert [document.lines for document in extract.documents] == [
        ("another tool without translation", "It is here.")
    ]


def test_find_twins() -> None:
    names = ["d/a.en.html", "d/a.zh-cn.html", "d/b.zh-cn.html"]
    assert find_twins(names, (r"\.zh-cn\.html$", ".en.html")) == [("d/a.en.html", "d/a.zh-cn.html")]


def test_declared_licence() -> None:
    text = (
        "Format: https://x/\n\nFiles: *\nCopyright: a\nLicense: GPL-2+\n text\n\n"
        "Files: b\nLicense: MIT\n"
    )
    assert declared_licence(text) == "GPL-2+"
    assert declared_licence("This package was made by hand.") is None


def test_deb_members_reads_without_unpacking(tmp_path: Path) -> None:
    root = tmp_path / "pkg"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: x\n"
    )
    (root / "usr/share").mkdir(parents=True)
    (root / "usr/share/a.mo").write_bytes(b"data")
    (root / "usr/share/b.txt").write_bytes(b"no")
    (root / "usr/share/link.mo").symlink_to("/etc/passwd")
    deb = tmp_path / "x_1_all.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-b", str(root), str(deb)],
        check=True,
        capture_output=True,
    )
    assert deb_members(deb, r"\.mo$") == {"usr/share/a.mo": b"data"}
    deb.write_bytes(deb.read_bytes()[:200])
    with pytest.raises(CorpusError, match=r"x_1_all\.deb: "):
        deb_members(deb, r"\.mo$")
