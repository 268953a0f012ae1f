"""The examples in small: they say what they are to show."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("numba")

import tokenix

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_best_of_n_shares_the_prompt_and_is_the_same_again() -> None:
    example = load("best_of_n")
    with tokenix.boot("smollm2", device_pages=96) as k:
        first = example.best_of(k, example.PROMPT, 4, max_tokens=12)
    scores = [candidate.mean_logprob for candidate in first.candidates]
    assert len(scores) == 4 and scores == sorted(scores, reverse=True)
    assert len({candidate.text for candidate in first.candidates}) > 1, "seeds of their own"
    assert first.frames < first.pages, "what is shared is there once"


def test_tree_search_computes_what_is_common_once() -> None:
    example = load("tree_search")
    with tokenix.boot("smollm2", device_pages=128) as k:
        result = example.search(k, example.PROMPT, width=2, depth=2)
        assert not [p for p in k.ps() if p.state != "zombie"], "no branch is left"
        assert result.explored == 2 + 4
    assert result.best.text
    assert result.computed_tokens < result.naive_tokens


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("best_of_n", ["0"], "n must be between 1 and 64"),
        ("best_of_n", ["65"], "n must be between 1 and 64"),
        ("best_of_n", ["x"], "invalid int value: 'x'"),
        ("tree_search", ["0"], "width must be between 1 and 32"),
        ("tree_search", ["3", "17"], "depth must be between 1 and 16"),
        ("tree_search", ["3", "4", "5"], "unrecognized arguments: 5"),
        ("tree_search", ["3", "4", "--device-pages", "0"], "device_pages must be at least 1"),
        ("tree_search", ["3", "4", "--device-pages", "14"], "give the device more pages"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    name: str,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(SystemExit) as ended:
        load(name).main()
    said = ended.value.code if isinstance(ended.value.code, str) else capsys.readouterr().err
    assert words in said and ended.value.code not in (0, None)
