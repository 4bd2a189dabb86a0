"""Translated documents in HTML or Mallard: text blocks, and their alignment."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from lxml import etree
from lxml import html as lxml_html

from kda.corpus.clean import clean_pair, count_han, monolingual_line
from kda.corpus.errors import CorpusError
from kda.corpus.records import Document, Extract, Pair

_BLOCKS = {
    "p",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "li",
    "dt",
    "dd",
    "td",
    "th",
    "caption",
}
_BLOCKS |= {"figcaption", "blockquote", "title", "desc"}
_CONTAINERS = _BLOCKS | {
    "div",
    "ul",
    "ol",
    "dl",
    "table",
    "tbody",
    "thead",
    "tr",
    "section",
}
_CONTAINERS |= {
    "article",
    "body",
    "html",
    "page",
    "info",
    "steps",
    "item",
    "list",
    "terms",
}
_CONTAINERS |= {
    "note",
    "media",
    "figure",
    "comment",
    "quote",
    "main",
    "header",
    "aside",
    "footer",
}
_CONTAINERS |= {"tree", "links"}
_SKIP = {
    "script",
    "style",
    "pre",
    "screen",
    "head",
    "nav",
    "button",
    "noscript",
    "svg",
    "math",
}
_SKIP |= {"credit", "license", "revision"}
_SKIP_CLASSES = re.compile(
    r"\b(toc|navheader|navfooter|programlisting|screen|literallayout|highlight[\w-]*|index"
    r"|MAC|sphinxsidebar|related|footer|headerlink|list-of-\w+|synopsis|revhistory|docnav|edition)\b"
)
_MAX_BLOCKS = 20_000


class Block(NamedTuple):
    """One run of text: the tag path that alignment compares, the id if any, and the text."""

    shape: str
    ident: str
    text: str


def parse_html(data: bytes, name: str) -> Any:
    parser = lxml_html.HTMLParser(encoding="utf-8", no_network=True, huge_tree=False)
    try:
        root = lxml_html.document_fromstring(data, parser=parser)
    except (etree.LxmlError, ValueError) as error:
        raise CorpusError(f"{name}: cannot parse HTML: {_one_line(error)}") from error
    return root


def parse_xml(data: bytes, name: str) -> Any:
    parser = etree.XMLParser(
        no_network=True,
        huge_tree=False,
        resolve_entities=False,
        recover=True,
        remove_comments=True,
    )
    try:
        root = etree.fromstring(data, parser)
    except (etree.LxmlError, ValueError) as error:
        raise CorpusError(f"{name}: cannot parse XML: {_one_line(error)}") from error
    if root is None:
        raise CorpusError(f"{name}: cannot parse XML: no element found")
    return root


def _one_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _tag(element: Any) -> str:
    tag = element.tag
    return etree.QName(tag).localname if isinstance(tag, str) else ""


def _prune(root: Any) -> None:
    """Remove what is no prose (code, menus, comments), keeping the text that follows it."""
    doomed = [
        element
        for element in root.iter()
        if element is not root
        and (
            not isinstance(element.tag, str)
            or _tag(element) in _SKIP
            or _SKIP_CLASSES.search(element.get("class") or "")
        )
    ]
    for element in doomed:
        parent = element.getparent()
        if parent is None:
            continue
        before, tail = element.getprevious(), element.tail or ""
        if before is not None:
            before.tail = (before.tail or "") + tail
        else:
            parent.text = (parent.text or "") + tail
        element.tail = None
        parent.remove(element)


def blocks(root: Any) -> list[Block]:
    """Text blocks in document order: runs of text that no inner block element interrupts.

    Iterative: hostile nesting depth must not overflow the stack.
    """
    _prune(root)
    found: list[Block] = []
    buffer: list[str] = []
    owners: list[Any] = [root]

    def flush() -> None:
        text = "".join(buffer)
        buffer.clear()
        if text.strip() and len(found) < _MAX_BLOCKS:
            owner = owners[-1]
            kind = owner.get("class") or ""
            found.append(Block(f"{_tag(owner)}.{kind}", owner.get("id") or "", text))

    for event, element in etree.iterwalk(root, events=("start", "end")):
        container = element is not root and _tag(element) in _CONTAINERS
        if event == "start":
            if container:
                flush()
                owners.append(element)
            buffer.append(" " if _tag(element) == "br" else element.text or "")
        else:
            if container:
                flush()
                owners.pop()
            if element is not root:
                buffer.append(element.tail or "")
    flush()
    return found


def align(left: list[Block], right: list[Block]) -> list[tuple[Block, Block]]:
    """Blocks of equal shape in the same order; where the structures differ, only equal runs."""
    shapes_left = [block.shape for block in left]
    shapes_right = [block.shape for block in right]
    if shapes_left == shapes_right:
        return list(zip(left, right, strict=True))
    matcher = difflib.SequenceMatcher(None, shapes_left, shapes_right, autojunk=False)
    rows: list[tuple[Block, Block]] = []
    for match in matcher.get_matching_blocks():
        rows.extend(
            zip(
                left[match.a : match.a + match.size],
                right[match.b : match.b + match.size],
                strict=True,
            )
        )
    return rows


def add_pairs(extract: Extract, rows: Iterable[tuple[Block, Block]], name: str) -> None:
    for english, chinese in rows:
        extract.counts["aligned_blocks"] += 1
        if not count_han(chinese.text):
            extract.counts["no_chinese"] += 1
            continue
        cleaned = clean_pair(english.text, chinese.text)
        if isinstance(cleaned, str):
            extract.counts[cleaned] += 1
        else:
            extract.pairs.append(Pair(*cleaned, name))


def add_document(extract: Extract, lang: str, found: Iterable[Block], name: str) -> None:
    lines = [line for block in found if (line := monolingual_line(block.text, lang)) is not None]
    if lines:
        extract.documents.append(Document(lang, tuple(lines), name))


def read_twins(
    files: Mapping[str, bytes], twins: Iterable[tuple[str, str]], *, xml: bool = False
) -> Extract:
    """Pairs and documents of (English path, Chinese path) twins."""
    extract = Extract()
    parse = parse_xml if xml else parse_html
    for english_name, chinese_name in sorted(twins):
        english = blocks(parse(files[english_name], english_name))
        chinese = blocks(parse(files[chinese_name], chinese_name))
        key = "same_structure" if len(english) == len(chinese) else "different_structure"
        extract.counts[key] += 1
        add_pairs(extract, align(english, chinese), chinese_name)
        add_document(extract, "en", english, english_name)
        add_document(extract, "zh", chinese, chinese_name)
    return extract


def read_by_id(files: Mapping[str, bytes], twins: Iterable[tuple[str, str]]) -> Extract:
    """As ``read_twins``, but paragraphs carry the same id in both languages (exact alignment)."""
    extract = Extract()
    for english_name, chinese_name in sorted(twins):
        english = blocks(_main(parse_html(files[english_name], english_name)))
        chinese = blocks(_main(parse_html(files[chinese_name], chinese_name)))
        by_id = {block.ident: block for block in english if block.ident}
        rows = [(by_id[b.ident], b) for b in chinese if b.ident and b.ident in by_id]
        add_pairs(extract, rows, chinese_name)
        add_document(extract, "en", english, english_name)
        add_document(extract, "zh", chinese, chinese_name)
    return extract


def _main(root: Any) -> Any:
    found = root.xpath('//*[@id="DisplayArea"]')
    return found[0] if found else root
