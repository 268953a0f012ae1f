"""The README is run: every ```python block is a program that works as pasted, and every command is
one that there is, with its options."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tokenix.cli import signals
from tokenix.cli.app import app
from tokenix.tests.tidy.tree import FOLDERS, ROOT

README = ROOT / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"\.venv/bin/tokenix ((?:[^\\\n`#&>]|\\\n)+)")
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)[^)]*\)")


def blocks() -> list[object]:
    """(first line, source) of each block; none while there is no README, which has its own test."""
    if not README.is_file():
        return []
    text = README.read_text(encoding="utf-8")
    lines = [(text.count("\n", 0, found.start(1)) + 1, found[1]) for found in BLOCK.finditer(text)]
    return [pytest.param(source, id=f"README.md:{line}") for line, source in lines]


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *(page for top in FOLDERS for page in (ROOT / top).rglob("*.md"))]


def test_readme_shows_python() -> None:
    assert blocks(), "README.md is missing, or has no ```python block"


@pytest.mark.parametrize("source", blocks())
def test_block_runs(source: str, tmp_path: Path) -> None:
    program = tmp_path / "block.py"
    program.write_text(source, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".lib")}
    done = subprocess.run(
        [sys.executable, str(program)],
        env=env,
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", COMMAND.findall(README.read_text(encoding="utf-8")))
def test_command_is_understood(line: str) -> None:
    """What it does is for other tests. Words of a shell's own pattern would name other files than
    the author saw."""
    words = shlex.split(line.replace("\\\n", ""))
    assert not [word for word in words if "*" in word]
    spelled = signals.spell_out(words) if words[0] == "kill" else words
    app.parse_args(spelled, exit_on_error=False, print_error=False)


@pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in pages()])
def test_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert not [target for target in targets if not (page.parent / target).exists()]
