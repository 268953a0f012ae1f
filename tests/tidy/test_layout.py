"""The folders at the root are one import package, and every list of them agrees."""

from pathlib import Path

import pytest

from tokenix.tests.tidy.tree import FOLDERS, PACKAGES, ROOT, pyproject

TOOLS = pyproject()["tool"]
DOTTED = {f"tokenix.{name}" for name in PACKAGES}


def test_the_link_makes_the_root_the_package() -> None:
    link = ROOT / ".lib" / "tokenix"
    assert link.is_symlink()
    assert link.readlink() == Path("..")
    assert (ROOT / "py.typed").read_bytes() == b""


@pytest.mark.parametrize("folder", FOLDERS)
def test_top_folder_has_a_readme_and_no_init(folder: str) -> None:
    assert (ROOT / folder / "README.md").is_file(), f"{folder}/ needs a README.md of one screen"
    # `sched/__init__.py` would shadow the standard library's `sched` for all that runs at the root.
    assert not (ROOT / folder / "__init__.py").exists()


def test_every_folder_with_code_is_listed() -> None:
    found = {path.parent.name for path in ROOT.glob("[a-z]*/*.py")} - {"build", "dist"}
    assert found <= set(FOLDERS), f"add {sorted(found - set(FOLDERS))} to tests/tidy/tree.py"


def test_the_tools_list_the_same_packages() -> None:
    wheel = TOOLS["hatch"]["build"]["targets"]["wheel"]
    assert set(wheel["only-include"]) == {"__init__.py", "py.typed", *PACKAGES}
    assert set(TOOLS["mypy"]["packages"]) == DOTTED | {"tokenix.tests.tidy"}
    assert set(TOOLS["pyright"]["include"]) == set(PACKAGES)
    assert set(TOOLS["importlinter"]["root_packages"]) == DOTTED


def test_constraints_pin_versions_and_name_no_index() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert not [line for line in pins if line.startswith("-") or "://" in line or "==" not in line]
