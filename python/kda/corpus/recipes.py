"""What the debian presets are made of: sources, their packages, roles and licences."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

# Kinds of text. Prose is repeated in the SFT file, since half of all pairs are short UI strings.
UI, PROSE, DOCS, DESCRIPTIONS = "ui", "prose", "docs", "desc"

_CATALOG = r"(?:^|/)(?:zh_CN|zh_Hans)/LC_MESSAGES/[^/]+\.mo$|zh_CN\.mo$"


@dataclass(frozen=True)
class Source:
    """One source: packages read together by one reader.

    ``packages`` entries may name alternatives (``gcc-12-locales|gcc-13-locales``): the first one
    that the package lists offer is taken. An entry that ends in ``?`` exists on some systems only
    and is no loss elsewhere. ``stratum`` set: the whole source is held out for
    evaluation. ``in_domain``: a fixed share of its pairs is held out.
    """

    name: str
    packages: tuple[str, ...]
    reader: str
    kind: str
    licence: str
    small: bool
    pattern: str = _CATALOG
    twin: tuple[str, str] | None = None
    lang: str = "zh"
    stratum: str | None = None
    in_domain: bool = False

    def choose(self, offered: Container[str]) -> tuple[list[str], list[str]]:
        """(packages to read, entries that are missing) given the names that the lists offer."""
        chosen: list[str] = []
        missing: list[str] = []
        for entry in self.packages:
            names = [name for name in alternatives(entry) if name in offered]
            chosen.extend(names[:1])
            if not names and not entry.endswith("?"):
                missing.append(entry)
        return ([] if missing else chosen), missing


def alternatives(entry: str) -> list[str]:
    """Package names of one ``packages`` entry."""
    return entry.removesuffix("?").split("|")


def _catalog(
    name: str,
    licence: str,
    *,
    small: bool = False,
    kind: str = UI,
    packages: str = "",
    stratum: str | None = None,
    in_domain: bool = False,
) -> Source:
    return Source(
        name=name,
        packages=(packages or name,),
        reader="catalog",
        kind=kind,
        licence=licence,
        small=small,
        stratum=stratum,
        in_domain=in_domain,
    )


def _wesnoth(campaign: str, **options: object) -> Source:
    return _catalog(
        f"wesnoth-{campaign}",
        "GPL-2+",
        kind=PROSE,
        packages=f"wesnoth-1.16-{campaign}|wesnoth-1.18-{campaign}",
        **options,  # type: ignore[arg-type]
    )


def _twins(
    name: str,
    packages: tuple[str, ...],
    licence: str,
    twin: tuple[str, str],
    *,
    small: bool = False,
    reader: str = "html",
    pattern: str = r"\.html$",
    stratum: str | None = None,
    in_domain: bool = False,
) -> Source:
    return Source(
        name=name,
        packages=packages,
        reader=reader,
        kind=DOCS,
        licence=licence,
        small=small,
        pattern=pattern,
        twin=twin,
        stratum=stratum,
        in_domain=in_domain,
    )


# Order matters: the first source that has a sentence keeps it, so prose comes first.
SOURCES: tuple[Source, ...] = (
    _catalog(
        "cataclysm-dda",
        "CC-BY-SA-3.0",
        small=True,
        kind=PROSE,
        packages="cataclysm-dda-data",
        in_domain=True,
    ),
    *(_wesnoth(c, small=True, stratum="narrative") for c in ("thot", "ttb", "l")),
    *(_wesnoth(c, small=True, in_domain=True) for c in ("nr", "did", "dm")),
    *(
        _wesnoth(c)
        for c in (
            "utbs",
            "httt",
            "trow",
            "sof",
            "low",
            "tsg",
            "sotbe",
            "sota",
            "ei",
            "dw",
        )
    ),
    _twins(
        "libreoffice-help",
        ("libreoffice-help-zh-cn", "libreoffice-help-en-us"),
        "MPL-2.0",
        (r"help/zh-CN/(.*)$", r"help/en-US/\1"),
        small=True,
        reader="html-id",
        pattern=r"help/(?:zh-CN|en-US)/text/.*\.html$",
        in_domain=True,
    ),
    _twins(
        "debian-handbook",
        ("debian-handbook",),
        "GPL-2+ or CC-BY-SA-3.0",
        (r"html/zh-CN/(.*)$", r"html/en-US/\1"),
        pattern=r"/html/(?:zh-CN|en-US)/[^/]*\.html$",
    ),
    _twins(
        "debian-reference",
        ("debian-reference-zh-cn", "debian-reference-en"),
        "GPL-2+",
        (r"\.zh-cn\.html$", ".en.html"),
        small=True,
    ),
    _twins(
        "debian-faq",
        ("debian-faq-zh-cn", "debian-faq"),
        "permissive copyleft (see its copyright file)",
        (r"FAQ/zh-cn/(.*)\.zh-cn\.html$", r"FAQ/\1.en.html"),
        small=True,
        stratum="docs",
    ),
    _twins(
        "maint-guide",
        ("maint-guide-zh-cn", "maint-guide"),
        "GPL-2+",
        (r"maint-guide-zh-cn/html/(.*)\.zh-cn\.html$", r"maint-guide/html/\1.en.html"),
        small=True,
        stratum="docs",
    ),
    _twins(
        "gnome-user-docs",
        ("gnome-user-docs", "gnome-user-docs-zh-hans?"),
        "CC-BY-SA-3.0",
        (r"help/zh_CN/(.*)$", r"help/C/\1"),
        small=True,
        reader="mallard",
        pattern=r"/help/(?:C|zh_CN)/.*\.page$",
        stratum="docs",
    ),
    _twins(
        "debmake-doc",
        ("debmake-doc",),
        "Expat",
        (r"\.zh-cn\.html$", ".en.html"),
        pattern=r"/html/[^/]*\.(?:en|zh-cn)\.html$",
    ),
    _twins(
        "installation-guide",
        ("installation-guide-amd64",),
        "GPL-2",
        (r"amd64/zh_CN/(.*)$", r"amd64/en/\1"),
        pattern=r"amd64/(?:en|zh_CN)/[^/]*\.html$",
    ),
    _twins(
        "debian-edu-doc",
        ("debian-edu-doc-zh-cn", "debian-edu-doc-en"),
        "GPL-2+",
        (r"debian-edu-doc-zh-cn/(.*)$", r"debian-edu-doc-en/\1"),
    ),
    _twins(
        "linux-doc",
        ("linux-doc-6.1|linux-doc",),
        "GPL-2",
        (r"html/translations/zh_CN/(.*)$", r"html/\1"),
        pattern=r"/html/(?!_sources|_static|translations/(?!zh_CN)).*\.html$",
    ),
    Source(
        "crawl",
        ("crawl-common",),
        "crawl",
        PROSE,
        "GPL-2+",
        True,
        r"dat/descript/(?:zh/)?[a-z]+\.txt$",
    ),
    Source(
        "fortunes-zh",
        ("fortunes-zh",),
        "fortunes",
        PROSE,
        "GPL-3+",
        True,
        r"fortunes/(?:chinese|song100|tang300)$",
    ),
    Source(
        "manpages-zh",
        ("manpages-zh",),
        "man",
        DOCS,
        "GFDL-1.2+",
        True,
        r"man/zh_CN/man\d/.*\.gz$",
    ),
    _catalog("blender", "GPL-2+", small=True, packages="blender-data"),
    _catalog("libreoffice", "MPL-2.0", small=True, packages="libreoffice-l10n-zh-cn"),
    _catalog("libvirt", "LGPL-2.1+", small=True, packages="libvirt-l10n"),
    _catalog("gcc", "GPL-3+", small=True, packages="gcc-12-locales|gcc-13-locales"),
    _catalog("e2fsprogs", "GPL-2", small=True, packages="e2fsprogs-l10n"),
    _catalog("util-linux", "GPL-2+", small=True, packages="util-linux-locales"),
    _catalog("gnupg", "GPL-3+", small=True, packages="gnupg-l10n"),
    _catalog("kdevelop", "GPL-2+ and LGPL-2.1+", small=True, packages="kdevelop-l10n"),
    _catalog("krita", "GPL and LGPL", small=True, packages="krita-l10n"),
    _catalog("gnucash", "GPL-2+", small=True, packages="gnucash-common", stratum="ui"),
    _catalog("tuxpaint", "GPL-2+", small=True, packages="tuxpaint-data", stratum="ui"),
    _catalog("wordpress", "GPL-2+", small=True, packages="wordpress-l10n", stratum="ui"),
    _catalog("gramps", "GPL-2+", small=True),
    _catalog("gnumeric", "GPL-2 or GPL-3", small=True, packages="gnumeric-common"),
    _catalog("audacity", "GPL-2+", small=True, packages="audacity-data"),
    _catalog("cinnamon", "GPL-2+", small=True, packages="cinnamon-l10n"),
    _catalog("filezilla", "GPL-2+", small=True, packages="filezilla-common"),
    _catalog("gtk3", "LGPL-2+", small=True, packages="libgtk-3-common"),
    _catalog("git", "GPL-2", small=True),
    # Ubuntu moves the translations of its main packages into language packs.
    Source(
        "language-pack",
        ("language-pack-zh-hans-base?", "language-pack-gnome-zh-hans-base?"),
        "catalog",
        UI,
        "per package, mostly GPL and LGPL",
        True,
    ),
    _catalog("digikam", "GPL-2+", packages="digikam-data"),
    _catalog("inkscape", "GPL-2+"),
    _catalog("gimp", "GPL-3+", packages="gimp-data"),
    _catalog("postgresql", "PostgreSQL", packages="postgresql-15|postgresql-16"),
    _catalog("evolution", "LGPL-2 or LGPL-3", packages="evolution-common"),
    _catalog("darktable", "GPL-3+"),
    _catalog("lyx", "GPL-2+", packages="lyx-common"),
    _catalog("phpmyadmin", "GPL-2"),
    _catalog("iso-codes", "LGPL-2.1+"),
    Source(
        "fortunes",
        ("fortunes",),
        "fortunes",
        PROSE,
        "BSD, sayings of many origins",
        False,
        r"games/fortunes/[a-z-]+$",
        lang="en",
    ),
    Source(
        "foldoc",
        ("dict-foldoc",),
        "dictd",
        DOCS,
        "GFDL-1.1+",
        False,
        r"foldoc\.dict\.dz$",
        lang="en",
    ),
    Source(
        "gcide",
        ("dict-gcide",),
        "dictd",
        DOCS,
        "GPL-2+",
        False,
        r"gcide\.dict\.dz$",
        lang="en",
    ),
)

DESCRIPTION_SOURCE = Source(
    "package-descriptions",
    (),
    "descriptions",
    DESCRIPTIONS,
    "per package; translations unclear: do not redistribute",
    True,
    "",
    stratum="desc",
)


def sources_of(preset: str) -> tuple[Source, ...]:
    """Sources of ``debian-small`` or ``debian-full``, in order of precedence."""
    return tuple(source for source in SOURCES if source.small or preset == "debian-full")
