"""What is called without a parser is called as the parser would."""

import inspect
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import tokenix
from tokenix.cli import commands
from tokenix.cli.app import app

ROOT = Path(tokenix.__file__).resolve().parent


@pytest.mark.parametrize("name", sorted(commands.QUICK))
def test_no_arguments_are_no_arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENIX_SOCKET", raising=False)
    function, bound, _ = app.parse_args([name])
    module, attribute = commands.place_of(name)
    assert function is getattr(import_module(module), attribute)
    assert not bound.args and not bound.kwargs
    assert inspect.signature(function).bind() == bound


def test_every_command_is_where_the_table_says() -> None:
    for group in commands.COMMANDS.values():
        for name in group:
            module, attribute = commands.place_of(name)
            assert hasattr(import_module(module), attribute), name
            assert app[name].help, f"{name} says what it does"


@pytest.mark.parametrize("name", sorted(commands.QUICK))
def test_nothing_heavy_is_imported(name: str, tmp_path: Path) -> None:
    program = (
        f"import sys; from tokenix.cli.main import main; main([{name!r}]); "
        "heavy = {'cyclopts', 'torch', 'numba', 'numpy', 'anyio', 'asyncio', 'rich', 'litestar', "
        "'structlog', 'tokenizers', 'jinja2'} & set(sys.modules); assert not heavy, heavy; "
        "kernel = [m for m in sys.modules if m.startswith('tokenix.kernel.')]; "
        "assert 'tokenix.kernel.core' not in kernel, kernel"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".lib"), "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "tokenix serve" in done.stderr
