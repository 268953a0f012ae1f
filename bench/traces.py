"""Serving traces: when requests arrived and how long they were. No text.

    shared CSV        arrival_s,prompt_tokens,output_tokens[,reason_ratio][,client]
                      [,prefix_hash_ids]                          ids range-encoded: "0-13 17"
    Azure CSV         TIMESTAMP,ContextTokens,GeneratedTokens     (AzurePublicDataset)
    BurstGPT CSV      Timestamp,...,Request tokens,Response tokens,...
    Mooncake JSONL    timestamp (ms), input_length, output_length, hash_ids of 512 tokens
    Bailian JSONL     chat_id, timestamp (s), input_length, output_length, hash_ids of 16 tokens

`read_trace` finds out which one it is. Equal hash ids mean equal blocks of prompt tokens.
"""

import csv
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

POOL_SHARE = 0.9
"""Requests whose prompt and output exceed this share of the KV pool are left out for everybody."""

LONGEST_HEAD = 1 << 20
LATEST_S = 1e12
MOST_BLOCKS = 1 << 20
"""Beyond these a file is no trace."""

Row = Mapping[str, Any]


class TraceError(ValueError):
    """One line: which file, which line, what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Request:
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    tenant: str = "default"
    hidden_tokens: int = 0
    """Of the output, reasoning that no reader sees."""
    blocks: tuple[int, ...] = ()
    """Hash ids of the prompt's blocks, in order."""

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    format: str
    requests: tuple[Request, ...]
    """By arrival; the first arrives at 0 or later."""
    block_tokens: int = 512
    """Prompt tokens that one hash id stands for."""
    skipped: int = 0
    """Rows without a prompt or (BurstGPT) without an answer."""

    @property
    def span_s(self) -> float:
        return self.requests[-1].arrival_s if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """Which part of a trace is replayed, and how fast."""

    rate_scale: float = 1.0
    """Arrival times are divided by it; order and lengths stay."""
    start_s: float = 0.0
    """After scaling."""
    duration_s: float | None = None
    """After scaling; None: to the end."""
    seed: int = 1
    """1 begins where the trace begins, any other seed at a place of its own, wrapped around. It
    also chooses the sample."""
    sample: float = 1.0
    """Share of the requests that is kept."""

    def __post_init__(self) -> None:
        if not self.rate_scale > 0:
            raise ValueError(f"the rate scale must be positive, not {self.rate_scale:g}")
        if self.duration_s is not None and not self.duration_s > 0:
            raise ValueError(f"the duration must be positive, not {self.duration_s:g} s")
        if not 0 < self.sample <= 1:
            raise ValueError(f"the sample must be a share in (0, 1], not {self.sample:g}")


def cut(trace: Trace, window: Window) -> list[Request]:
    """The requests of a window, with arrival times from its start."""
    chance = random.Random(window.seed)
    arrivals = _turn(trace, chance) if window.seed != 1 else _arrivals(trace)
    if window.sample < 1:
        arrivals = [arrival for arrival in arrivals if chance.random() < window.sample]
    end_s = float("inf") if window.duration_s is None else window.start_s + window.duration_s
    scaled = ((at_s / window.rate_scale, request) for at_s, request in arrivals)
    return [
        replace(request, arrival_s=at_s - window.start_s)
        for at_s, request in scaled
        if window.start_s <= at_s < end_s
    ]


def turned(trace: Trace, seed: int) -> list[tuple[float, Request]]:
    """(arrival, request) of all, from where windows of that seed begin; `arrival_s` of the requests
    is still the trace's."""
    return _turn(trace, random.Random(seed)) if seed != 1 else _arrivals(trace)


def _arrivals(trace: Trace) -> list[tuple[float, Request]]:
    return [(request.arrival_s, request) for request in trace.requests]


def _turn(trace: Trace, chance: random.Random) -> list[tuple[float, Request]]:
    """Begin at a place of its own, wrapped around."""
    if trace.span_s <= 0:
        return _arrivals(trace)
    span_s = trace.span_s * (1 + 1 / len(trace.requests))
    turn_s = chance.random() * span_s
    moved = [((request.arrival_s - turn_s) % span_s, request) for request in trace.requests]
    return sorted(moved, key=lambda arrival: arrival[0])


def drop_too_long(requests: list[Request], pool_tokens: int) -> tuple[list[Request], int]:
    """Without those that can never fit (or hardly): what is left, and how many were dropped."""
    kept = [r for r in requests if r.tokens <= POOL_SHARE * pool_tokens]
    return kept, len(requests) - len(kept)


def read_trace(path: str | Path) -> Trace:
    """Read a trace of any known format. OSError; TraceError says what is wrong in one line."""
    path = Path(path)
    requests: list[Request] = []
    skipped = number = 0
    with path.open(encoding="utf-8", newline="") as lines:
        try:
            kind, rows = _rows(path, lines)
            for number, row in enumerate(rows, 1):  # noqa: B007
                request = _READERS[kind](row)
                if request is None:
                    skipped += 1
                else:
                    requests.append(request)
        except TraceError:
            raise
        except UnicodeDecodeError as why:
            raise TraceError(f"{path}: not a text file (unpack what is packed): {why}") from None
        except KeyError as missing:
            raise TraceError(f"{path}: row {number} has no {missing}") from None
        except (ValueError, TypeError, AttributeError, ArithmeticError, csv.Error) as why:
            raise TraceError(f"{path}: row {number or 1} cannot be read: {why}") from None
    if not requests:
        raise TraceError(f"{path}: there is no request in it")
    return _finish(path.stem, kind, requests, skipped)


def _rows(path: Path, lines: TextIO) -> tuple[str, Iterator[Row]]:
    """The format, and the rows of a file that may be a pipe."""
    first = lines.readline(LONGEST_HEAD)
    if len(first) == LONGEST_HEAD:
        raise TraceError(f"{path}: not a known trace: its first line is very long")
    every = itertools.chain([first.lstrip("\ufeff")], lines)
    if first.lstrip("\ufeff").startswith("{"):
        return "bailian" if '"chat_id"' in first else "mooncake", _json_rows(path, every)
    reader = csv.DictReader(every, restval="")
    reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
    return _csv_kind(path, reader.fieldnames), reader


def _csv_kind(path: Path, names: list[str]) -> str:
    for kind, wanted in _CSV_COLUMNS.items():
        if set(wanted) <= set(names):
            return kind
    known = "; ".join(",".join(wanted) for wanted in _CSV_COLUMNS.values())
    raise TraceError(
        f"{path}: not a known trace: its first line must have the columns {known}; or each line "
        "is a JSON object, as Mooncake and Qwen-Bailian have them"
    )


def _json_rows(path: Path, lines: Iterator[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as why:
            raise TraceError(f"{path}: line {number} is not JSON: {why}") from None
        if not isinstance(row, dict):
            raise TraceError(f"{path}: line {number} is not a JSON object")
        yield row


def _finish(name: str, kind: str, requests: list[Request], skipped: int) -> Trace:
    requests.sort(key=lambda request: request.arrival_s)
    if kind in ("azure", "bailian"):
        first_s = requests[0].arrival_s
        requests = [replace(r, arrival_s=r.arrival_s - first_s) for r in requests]
    requests = spread_ticks(requests)
    return Trace(name, kind, tuple(requests), 16 if kind == "bailian" else 512, skipped)


def spread_ticks(requests: list[Request]) -> list[Request]:
    """Time stamps that come in ticks: each group is spread evenly until the next tick. Only if
    most requests share theirs (Mooncake's come every 3 s)."""
    counts = Counter(request.arrival_s for request in requests)
    if len(counts) < 2 or 2 * len(counts) >= len(requests):
        return requests
    stamps = sorted(counts)
    tick_s = min(after - before for before, after in itertools.pairwise(stamps))
    seen: Counter[float] = Counter()
    spread = []
    for request in requests:
        stamp = request.arrival_s
        part = seen[stamp] / counts[stamp]
        spread.append(replace(request, arrival_s=stamp + tick_s * part))
        seen[stamp] += 1
    return spread


# ---- one row of each format; None: not a request that was served ----


def _sized(
    arrival_s: float, prompt: Any, output: Any, blocks: tuple[int, ...] = ()
) -> Request | None:
    prompt_tokens, output_tokens = int(float(prompt)), int(float(output))
    if not 0 <= arrival_s < LATEST_S:
        raise ValueError(f"arrival at {arrival_s} s")
    if prompt_tokens < 0 or output_tokens < 0:
        raise ValueError("a length is negative")
    if prompt_tokens == 0:
        return None
    return Request(arrival_s, prompt_tokens, max(1, output_tokens), blocks=blocks)


def _shared(row: Row) -> Request | None:
    blocks = _ranges(row.get("prefix_hash_ids") or "")
    request = _sized(float(row["arrival_s"]), row["prompt_tokens"], row["output_tokens"], blocks)
    if request is None:
        return None
    share = float(row.get("reason_ratio") or 0.0)
    if not 0 <= share <= 1:
        raise ValueError(f"reason_ratio is a share, not {share:g}")
    hidden = int(share * request.output_tokens)
    return replace(request, tenant=row.get("client") or "default", hidden_tokens=hidden)


def _azure(row: Row) -> Request | None:
    stamp = datetime.fromisoformat(row["TIMESTAMP"].strip())
    seconds = (stamp.replace(tzinfo=None) - datetime(2000, 1, 1)).total_seconds()
    return _sized(seconds, row["ContextTokens"], row["GeneratedTokens"])


def _burstgpt(row: Row) -> Request | None:
    if int(float(row["Response tokens"])) == 0:
        return None
    return _sized(float(row["Timestamp"]), row["Request tokens"], row["Response tokens"])


def _mooncake(row: Row) -> Request | None:
    blocks = _ids(row.get("hash_ids") or [])
    return _sized(row["timestamp"] / 1000, row["input_length"], row["output_length"], blocks)


def _bailian(row: Row) -> Request | None:
    blocks = _ids(row.get("hash_ids") or [])
    return _sized(float(row["timestamp"]), row["input_length"], row["output_length"], blocks)


def _ids(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
        raise ValueError("hash_ids is not a list of integers")
    return tuple(values)


def _ranges(text: str) -> tuple[int, ...]:
    ids: list[int] = []
    for part in text.split():
        first, _, last = part.partition("-")
        span = range(int(first), int(last or first) + 1)
        if span.stop - span.start > MOST_BLOCKS:
            raise ValueError(f"{part} are more hash ids than a prompt has")
        ids.extend(span)
    return tuple(ids)


_READERS: dict[str, Callable[[Row], Request | None]] = {
    "shared": _shared,
    "azure": _azure,
    "burstgpt": _burstgpt,
    "mooncake": _mooncake,
    "bailian": _bailian,
}

_CSV_COLUMNS = {
    "shared": ("arrival_s", "prompt_tokens", "output_tokens"),
    "azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "burstgpt": ("Timestamp", "Request tokens", "Response tokens"),
}
