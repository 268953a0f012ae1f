"""The README is run: every ```python block is a program that works as pasted."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tokenix.tests.tidy.tree import FOLDERS, ROOT

README = ROOT / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
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


@pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in pages()])
def test_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert not [target for target in targets if not (page.parent / target).exists()]
