"""One example of every message, request and answer, whose bytes are kept in `golden.txt`.

    python -m tokenix.tests.wire.golden > tests/wire/golden.txt

writes them again. A line that changes or goes breaks clients: that is another VERSION of the ABI.
"""

from pathlib import Path
from typing import Any

from msgspec import msgpack

from tokenix.kernel import answers, calls
from tokenix.kernel.trace import TraceEvent
from tokenix.syscalls import texts
from tokenix.syscalls.wire import abi
from tokenix.syscalls.wire.limits import WireLimits

FILE = Path(__file__).with_name("golden.txt")

Reason = answers.ExitReason
USAGE = answers.Rusage(prompt_tokens=3, output_tokens=2, ttft_s=0.25, total_s=1.5)
OUTPUT = answers.Output(7, " hé", 1.25, -0.5, ((7, -0.5), (9, -1.5)))
PARTIAL = answers.ReadResult((answers.Output(7, " a", 1.25),))
END = answers.ReadResult((OUTPUT,), answers.TurnEnd(Reason.STOP, "x"), True, Reason.STOP)

REQUESTS: dict[str, Any] = {
    "read": calls.Read(5, 16, False),
    "fork": calls.Fork(5, 2, (1, 2)),
    "wait": calls.Wait(5),
    "wait any": calls.Wait(),
    "kill": calls.Kill(5, calls.Signal.TERM),
    "nice": calls.Nice(5, -3),
    "setrlimit": calls.SetRlimit(5, 10, None, 2.5),
    "shmunlink": calls.ShmUnlink("manual"),
    "stat": calls.Stat(5),
    "ps": calls.Ps(),
    "maps": calls.Maps(5, 16),
    "tail": calls.Tail(5, 8),
    "framemap": calls.Framemap("host", 16),
    "prefixes": calls.Prefixes(8),
    "plan": calls.Plan(),
    "vmstat": calls.Vmstat(),
    "metrics": calls.Metrics(),
    "sysctl": calls.Sysctl("sched.target_stream_s", 2.5),
    "swapon": calls.Swapon("dir", 1 << 30),
    "swapoff": calls.Swapoff(),
    "suspend": calls.Suspend(5, "chat"),
    "resume": calls.Resume("chat"),
    "images": calls.Images(),
    "unlinkimage": calls.UnlinkImage("chat"),
    "trace": calls.Trace(5, 100, 10),
    "cancelcall": calls.CancelCall(4),
    "spawn": texts.SpawnText(
        [{"role": "user", "content": "Hi"}], {"max_tokens": 8, "logit_bias": {7: -1.5}}
    ),
    "write": texts.WriteText(5, "More", True, True),
    "shmopen": texts.ShmText("manual", "Once upon a time"),
    "tokenize": texts.Tokenize("Hi", {"raw": True}),
    "detokenize": texts.Detokenize((1, 2, 3)),
    "tokenbytes": texts.TokenBytes((1, 2)),
    "model": texts.GetModel(),
}

STAT = answers.ProcessStat(
    5, 0, "ann", "essay", "ready", ("pipe",), "stream", 0, 1, "due", 64, 2.5, 3, 2, 1, 5, 1, 1, 0,
    1.5, USAGE,
)  # fmt: skip
MODEL = texts.ModelInfo(
    name="m", fingerprint="f" * 8, format="gguf", context_tokens=2048, vocab_tokens=49152,
    eos_tokens=(2,), has_chat=True, knows_tools=False, default_sampling={"top_p": 0.9},
    size_bytes=1000, page_tokens=16, device_pages=64, kv_dtype="f16", policy="progress",
)  # fmt: skip
METERS = answers.MeterSeries(
    "ann", "stream", {"tokens": 2}, {"stop": 1}, {"ttft": answers.Distribution((0, 1), 0.25)}
)

ANSWERS: dict[str, Any] = {
    "read": END,
    "read more": PARTIAL,
    "fork": (6, 7),
    "wait": answers.WaitResult(5, Reason.LENGTH, "", USAGE),
    "kill": None,
    "nice": 0,
    "setrlimit": None,
    "shmunlink": None,
    "stat": STAT,
    "ps": answers.Listing((STAT,), 5),
    "maps": answers.PageMap(5, 16, 40, 3, 0, b"\x03\x03\x01"),
    "tail": (7, 9),
    "framemap": answers.PlaceMap("host", 3, 0, b"\x01\x02\x00"),
    "prefixes": (answers.PrefixNode("0a", "", "ann", 0, 4, 7, 3, 1, 0, 2, 0.5),),
    "plan": answers.PlanReport(
        1.5,
        "progress",
        9,
        1.25,
        (5,),
        ((6, 32),),
        2,
        (answers.Queued(7, "stream", 64, 0.5, 1.0),),
        (answers.Due(8, 2.5, 4, 1, 0),),
        (TraceEvent(101, 1.5, 8, "pause", (("reason", "due"),)),),
    ),
    "vmstat": {"free_frames": 12.0},
    "metrics": answers.MetricsReport({"ttft": (0.1, 1.0)}, (METERS,)),
    "sysctl": 2.5,
    "swapon": 1 << 30,
    "swapoff": 0,
    "suspend": answers.ImageInfo("chat", "ann", 4096),
    "resume": 8,
    "images": (answers.ImageInfo("chat", "ann", 4096),),
    "unlinkimage": None,
    "trace": (TraceEvent(101, 1.5, 5, "state", (("old", "new"), ("new", "ready"))),),
    "cancelcall": True,
    "spawn": 5,
    "write": 3,
    "shmopen": 48,
    "tokenize": (1, 2),
    "detokenize": "Hi",
    "tokenbytes": (b"Hi", b"\xff"),
    "model": MODEL,
}

LIMITS = WireLimits()

MESSAGES: dict[str, Any] = {
    "hello": abi.Hello(1, "ps"),
    "follow": abi.Follow(9, 5, 64, "ann"),
    "grant": abi.Grant(9, 32),
    "ping": abi.Ping(),
    "pong": abi.Pong(),
    "welcome": abi.Welcome(1, "tokenix", 4242, abi.Peer("default", True), LIMITS),
    "fail": abi.Fail(3, 11, "too many", 1.5),
    "delta": abi.Delta(9, PARTIAL),
    "delta end": abi.Delta(9, END),
    "bye": abi.Bye(71, "a second hello"),
}


def examples() -> dict[str, Any]:
    """Name -> message."""
    return {
        **MESSAGES,
        "ask for a tenant": abi.Ask(1, calls.Ps(), "ann"),
        **{f"ask {name}": abi.Ask(1, request) for name, request in REQUESTS.items()},
        **{f"answer {name}": abi.Answer(1, value) for name, value in ANSWERS.items()},
    }


def lines() -> list[str]:
    return [
        f"{name}: {msgpack.encode(message).hex()}" for name, message in sorted(examples().items())
    ]


if __name__ == "__main__":
    print("\n".join(lines()))  # noqa: T201
