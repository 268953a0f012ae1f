"""Images on the real model and a real disk: a session outlives the program that served it."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

import tokenix
from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.requests import SpawnOptions
from tokenix.tests.syscalls.conftest import PATIENT
from tokenix.tests.syscalls.test_identity import Drawn
from tokenix.tests.tidy.tree import ROOT

GREEDY: SpawnOptions = {"max_tokens": 40, "ignore_eos": True}
SEEDED: SpawnOptions = {
    "max_tokens": 40, "ignore_eos": True, "temperature": 0.9, "top_p": 0.95, "seed": 7,
    "repetition_penalty": 1.1, "frequency_penalty": 0.2, "logprobs": 2, "stop": ["never said"],
}  # fmt: skip
CASES = {"greedy": GREEDY, "seeded": SEEDED}
PROMPT = "Tell me in a few sentences how bread is made, from the flour to the oven."
HELLO, AGAIN = "Name three rivers of Europe.", "Which of them is the longest?"
CHAT: SpawnOptions = {"max_tokens": 24, "keep_open": True, "name": "rivers"}
PATIENCE_S = 60.0


def boot(directory: Path, **options: object) -> Syscalls:
    return tokenix.boot(
        "smollm2", device_pages=96, image_dir=str(directory), tunables=PATIENT, threads=2,
        **options,  # type: ignore[arg-type]
    )  # fmt: skip


def take(k: Syscalls, pid: Pid, tokens: int = 1 << 30) -> tuple[Drawn, str]:
    """The next tokens, or all up to the end of the turn; and their text."""
    found: Drawn = []
    text = ""
    while len(found) < tokens:
        result = k.read(pid, tokens - len(found))
        found += [(output.token, output.logprob, output.top) for output in result.outputs]
        text += "".join(output.text for output in result.outputs)
        if result.turn_ended is not None or result.eof:
            return found, text + (result.turn_ended.tail if result.turn_ended else "")
    return found, text


def first_life(directory: str) -> None:
    """A program that suspends two streams, leaves a chat alone, and is killed."""
    k = boot(Path(directory), params=Params(image_idle_s=0.3))
    chat = k.as_tenant("red").spawn(HELLO, **CHAT)
    told = {"chat": take(k, chat)}
    pids = {name: k.spawn(PROMPT, **options) for name, options in CASES.items()}
    for name, pid in pids.items():
        told[name] = take(k, pid, 5)
    for name, pid in pids.items():
        k.suspend(pid, name)
    while k.vmstat()["images.saved"] < 3:
        os.sched_yield()
    sys.stdout.write(repr(told))
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[Drawn, str]]]:
    """What the first life has left on the disk, and what its readers had heard."""
    directory = tmp_path_factory.mktemp("images")
    program = (
        "from tokenix.tests.syscalls.test_images import first_life\n"
        f"first_life({str(directory)!r})\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".lib")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    return directory, eval(done.stdout)


@pytest.fixture(scope="module")
def k(left: tuple[Path, dict[str, tuple[Drawn, str]]]) -> Syscalls:
    with boot(left[0], swap_resume=True) as machine:
        yield machine  # type: ignore[misc]


def test_a_chat_is_there_again_after_kill_9(
    k: Syscalls, left: tuple[Path, dict[str, tuple[Drawn, str]]]
) -> None:
    red = k.as_tenant("red")
    (chat,) = [stat for stat in red.ps() if stat.name == "rivers"]
    assert chat.held == ("input",) and chat.computed_tokens > 16 and chat.unread_tokens == 0
    red.write(chat.pid, AGAIN)
    told = [left[1]["chat"], take(red, chat.pid)]
    pid = k.spawn(HELLO, **CHAT)
    alone = [take(k, pid)]
    k.write(pid, AGAIN)
    assert told == [*alone, take(k, pid)]
    for one in (pid, chat.pid):
        k.write(one, eof=True)
        k.wait(one)


def test_a_stream_goes_on_after_kill_9(
    k: Syscalls, left: tuple[Path, dict[str, tuple[Drawn, str]]]
) -> None:
    """The same tokens, log probabilities and text as without."""
    assert [info.name for info in k.images()] == sorted(CASES)
    for name, options in CASES.items():
        drawn, text = left[1][name]
        pid = k.resume(name)
        rest, more = take(k, pid)
        alone = k.spawn(PROMPT, **options)
        assert (drawn + rest, text + more) == take(k, alone), name
        usage = k.wait(pid).rusage
        assert usage.output_tokens == 40 and usage.recomputed_tokens == 0, "its pages came too"
        k.wait(alone)
    assert k.images() == ()
    assert k.vmstat()["images.pages_lost"] == 0


def test_damage_on_the_disk(k: Syscalls, left: tuple[Path, object]) -> None:
    """Of the head: refused. Of a page: computed again."""
    file = left[0] / "saved" / "t-default" / "it.img"
    pid = k.spawn(PROMPT, **GREEDY)
    drawn, _ = take(k, pid, 9)
    k.suspend(pid, "it")
    with pytest.raises(FileExistsError):
        k.suspend(k.spawn(PROMPT, **GREEDY), "it")
    good = file.read_bytes()
    for place, number in ((0, errno.EBADMSG), (8, errno.EINVAL), (300, errno.EBADMSG)):
        bad = bytearray(good)
        bad[place] ^= 4
        file.write_bytes(bad)
        with pytest.raises(OSError) as why:
            k.resume("it")
        assert why.value.errno == number
    bad = bytearray(good)
    bad[-5000] ^= 4
    file.write_bytes(bad)
    for stat in k.ps():  # nobody has the pages either
        k.kill(stat.pid, tokenix.SIGKILL)
        k.wait(stat.pid)
    pid = k.resume("it")
    alone = k.spawn(PROMPT, **GREEDY)
    assert drawn + take(k, pid)[0] == take(k, alone)[0]
    for one in (pid, alone):
        k.wait(one)


def test_names_and_tenants(k: Syscalls) -> None:
    red = k.as_tenant("a/red")
    pid = red.spawn(PROMPT, **GREEDY)
    assert red.suspend(pid, "my talk").tenant == "a/red"
    with pytest.raises(FileNotFoundError):
        k.resume("my talk")
    for name in ("", "../x", 3):
        with pytest.raises(OSError) as why:
            red.resume(name)  # type: ignore[arg-type]
        assert why.value.errno == errno.EINVAL
    red.unlink_image("my talk")
    with pytest.raises(FileNotFoundError):
        red.unlink_image("my talk")


def test_the_async_twins(k: Syscalls) -> None:
    async def main() -> None:
        twin = tokenix.aio.Syscalls(k.port)
        pid = await twin.spawn(PROMPT, **GREEDY)
        await twin.read(pid, 3)
        info = await twin.suspend(pid, "it")
        assert await twin.images() == (info,)
        await twin.wait(pid)
        pid = await twin.resume("it")
        await twin.suspend(pid, "it")
        await twin.unlink_image("it")
        assert await twin.images() == ()

    anyio.run(main)
