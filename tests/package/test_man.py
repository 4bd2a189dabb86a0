"""The manual page that scripts/make_man.py writes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ["KDA_PROGRAM"])


@pytest.fixture(scope="module")
def page() -> str:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/make_man.py", PROGRAM],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def plain(text: str) -> str:
    """Without the escapes of troff."""
    return text.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")


def test_every_command_and_option_is_in_the_page(page: str) -> None:
    script = subprocess.run(
        [PROGRAM, "completion", "fish"], capture_output=True, text=True, check=True
    ).stdout
    text = plain(page)
    options = re.findall(r"__kda_at \"/([a-z/-]+)\"'((?: -[ls] [\w-]+)+)", script)
    assert len(options) > 100
    found = re.findall(r'^\.SS "kda ([^"]+)"\n(.*?)(?=^\.S[SH] )', text, re.M | re.S)
    sections: dict[str, str] = dict(found)
    for path, names in options:
        if names.split() == ["-s", "h", "-l", "help"]:
            continue
        section = sections[path.replace("/", " ")]
        for name in re.findall(r"-l ([\w-]+)", names):
            assert f"--{name}" in section, (path, name)
    for command in ("data build", "export-flores"):  # of the Python tools
        assert "--out" in sections[command]


def test_page_says_where_it_is_from_and_no_home_folder(page: str) -> None:
    version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True)
    assert f"kda {version.stdout.split()[1]}" in plain(page.splitlines()[0])
    assert os.path.expanduser("~") + "/" not in page


def test_page_is_sound_troff(page: str, tmp_path: Path) -> None:
    if shutil.which("groff") is None or shutil.which("man") is None:
        pytest.skip("no groff and man on this machine")
    file = tmp_path / "kda.1"
    file.write_text(page)
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-k", "-ww", "-P-c", file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    shown = re.sub(".\b", "", done.stdout)  # bold is written twice
    assert "--grad-accum" in shown
