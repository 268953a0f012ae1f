"""The blocking calls on the real model: what a program that embeds Tokenix relies on."""

import errno
import threading
import time

import pytest

import tokenix
from tokenix.kernel.calls import Signal
from tokenix.mm.ids import Pid
from tokenix.syscalls.inproc import Syscalls

CAPITAL = "One word: the capital of France?"


def end(k: Syscalls, *pids: Pid) -> None:
    """Kill and reap."""
    for pid in pids:
        k.kill(pid, tokenix.SIGKILL)
        k.wait(pid)


def test_text_streams_and_usage_is_told(k: Syscalls) -> None:
    pid = k.spawn(CAPITAL, max_tokens=12)
    assert "Paris" in "".join(k.stream(pid))
    usage = k.wait(pid).rusage
    assert usage.ttft_s is not None and 0 < usage.ttft_s <= usage.total_s
    assert usage.output_tokens >= 1 and usage.prompt_tokens > 10
    with pytest.raises(ProcessLookupError):
        k.stat(pid)


def test_a_dialogue_keeps_its_memory(k: Syscalls) -> None:
    pid = k.spawn("Tell me about Paris in one sentence.", max_tokens=40, keep_open=True)
    assert "Paris" in "".join(k.stream(pid))
    k.write(pid, "Which city is it?")
    assert "Paris" in "".join(k.stream(pid))
    k.write(pid, eof=True)
    assert k.wait(pid).reason.value == "stop"


@pytest.mark.parametrize(
    ("limits", "number"),
    [
        ({"deadline_s": 1e-6}, errno.ETIMEDOUT),
        ({"max_pages": 3}, errno.EDQUOT),
        ({"max_pages": 3, "keep_open": True}, errno.EDQUOT),
    ],
)
def test_a_stream_that_was_cut_short_says_so(
    k: Syscalls, limits: dict[str, object], number: int
) -> None:
    pid = k.spawn("Tell me a story.", ignore_eos=True, **limits)  # type: ignore[arg-type]
    with pytest.raises(OSError, match=f"process {pid}") as cut:
        list(k.stream(pid))
    assert cut.value.errno == number
    end(k, pid)


@pytest.mark.parametrize("signal", [Signal.KILL, Signal.TERM])
def test_a_stream_that_somebody_ends_says_so(k: Syscalls, signal: Signal) -> None:
    pid = k.spawn("Tell me a story.", max_tokens=200, ignore_eos=True)
    stream = k.stream(pid)
    assert next(stream)
    k.kill(pid, signal)
    with pytest.raises(OSError, match=signal.name) as cut:
        list(stream)
    assert cut.value.errno == errno.ECANCELED
    end(k, pid)


def test_the_end_of_who_waits_for_input_spoils_no_turn(k: Syscalls) -> None:
    pid = k.spawn(CAPITAL, max_tokens=12, keep_open=True)
    while k.stat(pid).held != ("input",):
        time.sleep(0.01)
    k.kill(pid, tokenix.SIGKILL)
    assert "Paris" in "".join(k.stream(pid))
    k.wait(pid)


def test_stop_strings_never_show(k: Syscalls) -> None:
    pid = k.spawn("1, 2, 3, 4, 5,", raw=True, max_tokens=40, stop=[", 9"])
    text = "".join(k.stream(pid))
    assert "8" in text and "9" not in text
    assert k.wait(pid).reason.value == "stop"


def test_messages_tokens_and_raw_text_are_prompts(k: Syscalls) -> None:
    tokenizer = k.machine.image.tokenizer
    as_text = k.spawn("The sky is", raw=True, max_tokens=6)
    as_tokens = k.spawn(tokenizer.encode("The sky is"), max_tokens=6)
    as_chat = k.spawn([{"role": "user", "content": CAPITAL}], max_tokens=6)
    assert "".join(k.stream(as_text)) == "".join(k.stream(as_tokens))
    assert "Paris" in "".join(k.stream(as_chat))
    for pid in (as_text, as_tokens, as_chat):
        k.wait(pid)


def test_a_shared_prefix_is_computed_once(k: Syscalls) -> None:
    prefix = "You are a clerk of few words. " * 12
    kept = k.shm_open("clerk", prefix)
    assert kept > 0 and kept % 16 == 0
    pid = k.spawn(prefix + "Now:", raw=True, max_tokens=2)
    list(k.stream(pid))
    assert k.wait(pid).rusage.cached_tokens >= kept - 16
    with pytest.raises(FileExistsError):
        k.shm_open("clerk", prefix)
    k.shm_unlink("clerk")
    with pytest.raises(FileNotFoundError):
        k.shm_unlink("clerk")


def test_a_blocked_read_times_out_and_loses_nothing(k: Syscalls) -> None:
    pid = k.spawn("Count to fifty.", max_tokens=12, ignore_eos=True)
    k.kill(pid, tokenix.SIGSTOP)
    got = list(k.read(pid, block=False).outputs)
    with pytest.raises(TimeoutError):
        while True:
            got += k.read(pid, timeout_s=0.2).outputs
    k.kill(pid, tokenix.SIGCONT)
    while True:
        result = k.read(pid)
        got += result.outputs
        if result.eof:
            break
    alone = k.spawn("Count to fifty.", max_tokens=12, ignore_eos=True)
    expected: list[int] = []
    while not (result := k.read(alone)).eof:
        expected += [output.token for output in result.outputs]
    expected += [output.token for output in result.outputs]
    assert [output.token for output in got] == expected
    with pytest.raises(BrokenPipeError):
        k.read(pid)
    k.wait(pid)
    k.wait(alone)


def test_tenants_see_only_their_own(k: Syscalls) -> None:
    red, blue = k.as_tenant("red"), k.as_tenant("blue")
    pid = red.spawn("Hello", max_tokens=200, ignore_eos=True)
    assert [process.pid for process in red.ps()] == [pid]
    assert not blue.ps()
    for call in (blue.stat, blue.read, blue.kill, blue.fork):
        with pytest.raises(ProcessLookupError):
            call(pid)
    with pytest.raises(ChildProcessError):
        blue.wait(pid)
    with pytest.raises(PermissionError):
        red.nice(pid, -5)
    with pytest.raises(PermissionError):
        red.sysctl("policy", "fcfs")
    assert k.stat(pid).tenant == "red"
    end(k, pid)


def test_policy_and_tunables_change_live(k: Syscalls) -> None:
    pid = k.spawn("Tell me a story.", max_tokens=60, ignore_eos=True)
    for name in ("fcfs", "retract", "progress"):
        k.sysctl("policy", name)
        assert k.sysctl("policy") == name
        assert k.read(pid).outputs
    assert k.sysctl("sched.margin_s", 0.4) == 0.3 and k.sysctl("sched.margin_s") == 0.4
    k.sysctl("sched.margin_s", 0.3)
    with pytest.raises(FileNotFoundError):
        k.sysctl("sched.nothing")
    with pytest.raises(OSError, match="no policy") as wrong:
        k.sysctl("policy", "best")
    assert wrong.value.errno == errno.EINVAL
    end(k, pid)


def test_trace_tells_what_happened(k: Syscalls) -> None:
    pid = k.spawn("Hi", max_tokens=30, ignore_eos=True)
    k.read(pid)
    k.kill(pid, tokenix.SIGSTOP)
    while k.stat(pid).state != "swapped":
        time.sleep(0.01)
    k.kill(pid, tokenix.SIGCONT)
    for _ in k.stream(pid):
        pass
    kinds = [event.kind for event in k.trace(pid)]
    assert kinds[0] == "spawn" and kinds[-1] == "exit"
    assert {"admit", "signal", "pause", "resume"} <= set(kinds)
    k.wait(pid)


def test_wait_for_any_takes_each_once(k: Syscalls) -> None:
    pids = {k.spawn(f"Say {word}.", max_tokens=3) for word in ("one", "two", "three")}
    assert {k.wait().pid for _ in pids} == pids
    with pytest.raises(ChildProcessError):
        k.wait()


def test_many_threads_read_many_streams(k: Syscalls) -> None:
    texts: dict[int, str] = {}

    def client(number: int) -> None:
        pid = k.spawn("Name a colour.", max_tokens=5, ignore_eos=True)
        texts[number] = "".join(k.stream(pid))
        k.wait(pid)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 24 and len(set(texts.values())) == 1
    assert not k.ps()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"deadline_s": -1.0}, "deadline_s"),
        ({"max_pages": 0}, "max_pages"),
        ({"nice": 30}, "nice"),
        ({"qos": "fast"}, "qos"),
        ({"reader": "quick"}, "reader"),
        ({"stop": [""]}, "stop"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_options_that_make_no_sense(k: Syscalls, options: dict[str, object], problem: str) -> None:
    with pytest.raises(OSError, match=problem) as wrong:
        k.spawn("Hello", **options)  # type: ignore[arg-type]
    assert wrong.value.errno == errno.EINVAL
    assert "\n" not in str(wrong.value)
    assert not k.ps(), "nobody else is disturbed"


def test_prompts_that_make_no_sense(k: Syscalls) -> None:
    for prompt in ("", [], [49152 + 5], [-1], ["x"], [{"text": "x"}]):
        with pytest.raises(OSError) as wrong:
            k.spawn(prompt)  # type: ignore[arg-type]
        assert wrong.value.errno == errno.EINVAL, prompt
    with pytest.raises(OSError, match="shorten the prompt") as wrong:
        k.spawn("word " * 2000)
    assert wrong.value.errno == errno.E2BIG


def test_a_closed_machine_answers_so() -> None:
    with tokenix.boot("smollm2", device_pages=16) as machine:
        pid = machine.spawn("Count to ten thousand.", max_tokens=100, ignore_eos=True)
        machine.kill(pid, tokenix.SIGSTOP)
        problems: list[OSError] = []

        def reader() -> None:
            try:
                while True:
                    machine.read(pid)
            except OSError as problem:
                problems.append(problem)

        thread = threading.Thread(target=reader)
        thread.start()
        time.sleep(0.2)
    thread.join(10)
    assert not thread.is_alive() and problems[0].errno == errno.ESHUTDOWN
    with pytest.raises(OSError) as wrong:
        machine.ps()
    assert wrong.value.errno == errno.ESHUTDOWN
