"""The command line without a model: help, errors, exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tokenix
from tokenix.cli import answer
from tokenix.cli.app import dispatch
from tokenix.cli.main import main
from tokenix.cli.status import FAILED, OK, PIPE_CLOSED, USAGE, UsageError

ROOT = Path(tokenix.__file__).resolve().parent


def tell(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(argv)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["bogus"], USAGE, "bogus"),
        (["run", "--bogus", "x"], USAGE, "--bogus"),
        (["run", "--max-tokens", "many", "x"], USAGE, "--max-tokens"),
        (["run", "one", "two", "three"], USAGE, "quote the prompt"),
        (["run", " "], USAGE, "empty"),
        (["run", "--raw", "--system", "s", "x"], USAGE, "--system"),
        (["run", "no-such-model", "x"], FAILED, "no-such-model"),
        (["run", "missing.gguf", "x"], FAILED, "missing.gguf"),
        (["run", "--policy", "lifo", "x"], USAGE, "lifo"),
        (["run", "--device-pages", "0", "x"], USAGE, "device_pages"),
        (["demo", "--policy", "lifo"], USAGE, "lifo"),
    ],
)
def test_errors_are_one_line(
    argv: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got, out, err = tell(argv, capsys)
    assert got == code
    assert out == ""
    assert err.startswith("tokenix: error: ") and err.count("\n") == 1
    assert words in err


def test_a_file_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "torn.gguf"
    path.write_bytes(b"GGUF and then nothing")
    code, _, err = tell(["run", str(path), "x"], capsys)
    assert code in (FAILED, USAGE)
    assert "torn.gguf" in err and err.count("\n") == 1


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell(["--version"], capsys)[:2] == (OK, f"{tokenix.__version__}\n")
    code, out, _ = tell(["--help"], capsys)
    assert code == OK
    assert all(command in out for command in ("run", "list", "demo"))
    code, out, _ = tell(["serve", "--help"], capsys)
    assert code == OK and "--kernel." in out and "--http.port" in out


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from tokenix.cli.main import main; main(['run', '--help']); "
        "heavy = {'torch', 'numba', 'numpy', 'anyio'} & set(sys.modules); assert not heavy, heavy"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".lib")}
    subprocess.run([sys.executable, "-c", program], env=env, check=True, capture_output=True)


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = tell(["list", "--json"], capsys)
    assert code == OK
    models = {model["name"]: model for model in json.loads(out)}
    assert models["smollm2"].keys() == {"name", "installed", "summary", "path", "size_bytes"}
    code, out, _ = tell(["list"], capsys)
    assert code == OK and "smollm2" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["What is a pipe?"], ("smollm2", "What is a pipe?")),
        (["smollm2", "Hi"], ("smollm2", "Hi")),
        (["./other.gguf", "Hi"], ("./other.gguf", "Hi")),
        (["smollm2"], ("smollm2", "from stdin")),
        (["other.gguf"], ("other.gguf", "from stdin")),
        ([], ("smollm2", "from stdin")),
        (["-"], ("smollm2", "from stdin")),
        (["smollm2", "-"], ("smollm2", "from stdin")),
        (["x" * 5000], ("smollm2", "x" * 5000)),
        (["~nobody-of-that-name/x"], ("smollm2", "~nobody-of-that-name/x")),
    ],
)
def test_which_word_is_the_model(
    words: list[str], expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "sys", FakeSystem("from stdin\n"))
    assert answer.split_words(words) == expected


def test_an_existing_path_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "sys", FakeSystem("Hi"))
    assert answer.split_words([str(tmp_path)]) == (str(tmp_path), "Hi")


def test_nothing_on_stdin_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "sys", FakeSystem("\n"))
    with pytest.raises(UsageError, match="no prompt"):
        answer.split_words([])


def test_an_empty_prompt_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "sys", FakeSystem("not read"))
    with pytest.raises(UsageError, match="the prompt is empty"):
        answer.split_words([""])


def test_a_lone_hyphen_is_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(answer, "run", lambda words, options: seen.append((words, options)) or 0)
    dispatch(["run", "smollm2", "-", "--stop", "-", "--system", "-"])
    assert seen == [(("smollm2", "-"), answer.RunOptions({"stop": ["-"]}, "-"))]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(closed: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".lib")}
    command = f"{sys.executable} -m tokenix.cli.main list {closed}"
    done = subprocess.run(command, check=False, env=env, shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (OK, "")


@pytest.mark.parametrize(
    "words", ["--help", "ps --help", "list", "completion bash", "abi --schema"]
)
def test_standard_output_that_ends_early_or_is_full(words: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".lib")}
    command = f"{sys.executable} -m tokenix.cli.main {words}"
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            command.split(), check=False, env=env, stdout=write, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (PIPE_CLOSED, "")
    done = subprocess.run(
        f"{command} >/dev/full", check=False, env=env, shell=True, capture_output=True, text=True
    )
    assert done.returncode == FAILED and done.stderr.count("\n") == 1
    assert "No space left" in done.stderr


@pytest.mark.parametrize("prompt", ["\udcff", "Hi \udcc3("])
def test_a_prompt_that_is_no_text(monkeypatch: pytest.MonkeyPatch, prompt: str) -> None:
    """As Python gives bytes that are no UTF-8, on the command line or standard input."""
    monkeypatch.setattr(answer, "sys", FakeSystem(prompt))
    for words in ([prompt], ["-"], []):
        with pytest.raises(UsageError, match="must be UTF-8"):
            answer.split_words(words)


class FakeSystem:
    """`sys` with a standard input that is no terminal."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.stdin = self

    def isatty(self) -> bool:
        return False

    def read(self) -> str:
        return self.text
