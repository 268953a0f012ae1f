"""Traces: every format on a few lines, ticks, windows, and one clear line for what is wrong."""

import json
import os
import threading
from pathlib import Path

import pytest

from tokenix.bench.traces import (
    Request,
    Trace,
    TraceError,
    Window,
    cut,
    drop_too_long,
    read_trace,
    spread_ticks,
)

MOONCAKE = [
    {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]},
    {"timestamp": 3000, "input_length": 513, "output_length": 7, "hash_ids": [0, 2]},
]
BAILIAN = [
    {"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.5, "input_length": 20,
     "output_length": 9, "type": "text", "turn": 1, "hash_ids": [5, 6]},
    {"chat_id": 2, "parent_chat_id": 1, "timestamp": 62.0, "input_length": 33,
     "output_length": 3, "type": "text", "turn": 2, "hash_ids": [5, 6, 7]},
]  # fmt: skip

FILES = {
    "shared": (
        "arrival_s,prompt_tokens,output_tokens,reason_ratio,client\n0.5,10,20,0.5,7\n1.25,3,4,0,8\n"
    ),
    "azure": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    ),
    "burstgpt": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n"
        "118,GPT-4,417,276,693,API log\n"
    ),
    "mooncake": "".join(json.dumps(row) + "\n" for row in MOONCAKE),
    "bailian": "".join(json.dumps(row) + "\n" for row in BAILIAN),
}

EXPECTED = {
    "shared": [(0.5, 10, 20), (1.25, 3, 4)],
    "azure": [(0.0, 374, 44), (4.314579, 396, 109)],
    "burstgpt": [(5.0, 472, 18), (118.0, 417, 276)],
    "mooncake": [(0.0, 700, 5), (3.0, 513, 7)],
    "bailian": [(0.0, 20, 9), (0.5, 33, 3)],
}


def write(tmp_path: Path, text: str, name: str = "trace.txt") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("kind", FILES)
def test_the_format_is_found_out(tmp_path: Path, kind: str) -> None:
    trace = read_trace(write(tmp_path, FILES[kind]))
    found = [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in trace.requests]
    assert trace.format == kind
    assert found == [(pytest.approx(at, abs=1e-5), p, o) for at, p, o in EXPECTED[kind]]


def test_columns_beyond_lengths(tmp_path: Path) -> None:
    shared = read_trace(write(tmp_path, FILES["shared"])).requests
    assert (shared[0].tenant, shared[0].hidden_tokens, shared[1].tenant) == ("7", 10, "8")
    assert read_trace(write(tmp_path, FILES["mooncake"])).requests[1].blocks == (0, 2)
    bailian = read_trace(write(tmp_path, FILES["bailian"]))
    assert (bailian.requests[1].blocks, bailian.block_tokens) == ((5, 6, 7), 16)
    assert read_trace(write(tmp_path, FILES["burstgpt"])).skipped == 1


def test_hash_ids_in_ranges(tmp_path: Path) -> None:
    text = "arrival_s,prompt_tokens,output_tokens,prefix_hash_ids\n0,900,5,0-2 17\n"
    assert read_trace(write(tmp_path, text)).requests[0].blocks == (0, 1, 2, 17)


def test_ticks_are_spread_evenly() -> None:
    ticks = [Request(at, 5, 5) for at in (0.0, 0.0, 0.0, 0.0, 3.0, 6.0, 6.0)]
    assert [r.arrival_s for r in spread_ticks(ticks)] == [0.0, 0.75, 1.5, 2.25, 3.0, 6.0, 7.5]
    apart = [Request(at, 5, 5) for at in (0.0, 0.1, 0.1, 0.4)]
    assert spread_ticks(apart) == apart


HEAD = "arrival_s,prompt_tokens,output_tokens"
MOONCAKE = '{"timestamp": 0, "input_length": 3, "output_length": 3, "hash_ids": '


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a known trace"),
        ("a,b,c\n1,2,3\n", "not a known trace"),
        ("arrival_s,prompt_tokens,output_tokens\n", "no request"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,2\n0,x,2\n", "row 2 cannot be read"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1\n", "row 1 cannot be read"),
        ("arrival_s,prompt_tokens,output_tokens\n-1,1,2\n", "row 1 cannot be read: arrival"),
        ("arrival_s,prompt_tokens,output_tokens\n0,-1,2\n", "row 1 .*negative"),
        ('{"timestamp": 1, "input_length": 3}\n', "row 1 has no 'output_length'"),
        ('{"timestamp": 1, "input_length": 3, "output_length": 3}\n{oops\n', "line 2 is not JSON"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n", "row 1 cannot be read"),
        (HEAD + "\n0,inf,2\n", "row 1 cannot be read"),
        (HEAD + "\n1e300,1,2\n", "row 1 cannot be read: arrival"),
        (HEAD + ",reason_ratio\n0,1,2,7\n", "reason_ratio is a share"),
        (HEAD + ",prefix_hash_ids\n0,1,2,0-99999999999\n", "more hash ids"),
        (MOONCAKE + '["a"]}\n', "not a list of integers"),
        (MOONCAKE + "7}\n", "not a list of integers"),
        (MOONCAKE + "[" * 100_000 + "\n", "line 1 is not JSON"),
        ("a" * 200_000 + "\n", "cannot be read"),
        ("a" * 2_000_000, "first line is very long"),
    ],
)
def test_errors_are_one_line_with_the_place(tmp_path: Path, text: str, why: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError, match=why) as problem:
        read_trace(path)
    assert str(problem.value).startswith(str(path))
    assert "\n" not in str(problem.value)


def test_bytes_are_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "bytes.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match=r"bytes\.csv: not a text file"):
        read_trace(path)


def test_a_pipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(HEAD + "\n0,1,2\n1,3,4\n",))
    writer.start()
    assert [r.tokens for r in read_trace(path).requests] == [3, 7]
    writer.join()


TRACE = Trace("t", "shared", tuple(Request(float(i), i + 1, 1) for i in range(100)))


def test_scaling_divides_time_and_keeps_order() -> None:
    window = cut(TRACE, Window(rate_scale=2.0, start_s=10.0, duration_s=5.0))
    assert [r.prompt_tokens for r in window] == list(range(21, 31))
    assert [r.arrival_s for r in window] == [i / 2 for i in range(10)]


def test_seeds_begin_elsewhere_and_keep_the_circle() -> None:
    assert cut(TRACE, Window()) == list(TRACE.requests)
    turned = [r.prompt_tokens for r in cut(TRACE, Window(seed=2))]
    first = turned.index(1)
    assert turned != list(range(1, 101))
    assert turned[first:] + turned[:first] == list(range(1, 101))
    assert cut(TRACE, Window(seed=2)) == cut(TRACE, Window(seed=2))
    assert cut(TRACE, Window(seed=2)) != cut(TRACE, Window(seed=3))


def test_samples_are_parts_in_order() -> None:
    sample = cut(TRACE, Window(sample=0.3, seed=1))
    assert 15 <= len(sample) <= 45
    assert all(request in TRACE.requests for request in sample)


def test_what_can_never_fit_is_counted() -> None:
    kept, dropped = drop_too_long(list(TRACE.requests), 50)
    assert (len(kept), dropped) == (44, 56)


@pytest.mark.parametrize(
    "bad", [{"rate_scale": 0.0}, {"duration_s": 0.0}, {"sample": 0.0}, {"sample": 1.5}]
)
def test_windows_that_cannot_be(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Window(**bad)  # type: ignore[arg-type]
