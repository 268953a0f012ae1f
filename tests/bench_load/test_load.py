"""What a load is made of: quantities, arrivals, sessions, prompts. Without a server."""

import math
import random
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean, median, pstdev

import pytest

from tokenix.bench.load.arrivals import Arrivals
from tokenix.bench.load.clients import Clients, read_clients
from tokenix.bench.load.content import Content
from tokenix.bench.load.facts import describe
from tokenix.bench.load.prices import SHIPPED, price_of, read_prices
from tokenix.bench.load.sessions import Session, make_parts
from tokenix.bench.load.spread import parse_spread


@pytest.mark.parametrize(
    ("text", "low", "high", "middle"),
    [("128", 128, 128, 128), ("64-256", 64, 256, 160), ("~180:0.9", 1, 10_000, 180),
     ("~180:2:400", 1, 400, 180), (7, 7, 7, 7)],
)  # fmt: skip
def test_quantities(text, low, high, middle, seed: int) -> None:
    chance = random.Random(seed)
    drawn = [parse_spread(text).draw_count(chance) for _ in range(2000)]
    assert low <= min(drawn) and max(drawn) <= high
    assert median(drawn) == pytest.approx(middle, rel=0.15)


@pytest.mark.parametrize("text", ["", "x", "-5", "9-3", "~5", "~0:1", "~5:0", "~9:1:3", "nan"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="no quantity"):
        parse_spread(text)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_are_as_bursty_as_asked(burstiness: float, seed: int) -> None:
    times_s = list(islice(Arrivals(5.0, burstiness).times_s(random.Random(seed)), 8000))
    gaps = [after - before for before, after in pairwise(times_s)]
    assert fmean(gaps) == pytest.approx(0.2, rel=0.1)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1 / math.sqrt(burstiness), rel=0.1)


@pytest.mark.parametrize(("rate", "rate_to"), [(2.0, 20.0), (20.0, 2.0), (5.0, 0.0)])
def test_a_ramp_has_its_rate_everywhere(rate: float, rate_to: float, seed: int) -> None:
    ramp_s = 400.0
    arrivals = Arrivals(rate, 1.0, rate_to, ramp_s)
    times_s = list(islice(arrivals.times_s(random.Random(seed)), 20_000))
    for begin_s in range(0, 400, 100):
        expected = 100 * (rate + (rate_to - rate) * (begin_s + 50) / ramp_s)
        seen = sum(begin_s <= time_s < begin_s + 100 for time_s in times_s)
        assert seen == pytest.approx(expected, abs=5 * math.sqrt(expected) + 1)
    if rate_to == 0:
        assert max(times_s) <= ramp_s + 1e-6
    else:
        after = [time_s for time_s in times_s if time_s > ramp_s]
        assert len(after) / (after[-1] - ramp_s) == pytest.approx(rate_to, rel=0.15)


def test_the_same_seed_gives_the_same_load() -> None:
    def made(seed: int) -> list[Session]:
        group = Clients(
            rate=3, requests=50, input_tokens="~100:1", turns="1-4", think_s="~2:1", tool_s=1,
            tool_share=0.5, prefix_tokens=32, prefix_groups=4, stalled_share=0.2, leaving_share=0.2,
        )  # fmt: skip
        (part,) = make_parts((group,), seed)
        return list(part.sessions)

    one = made(1)
    assert one == made(1) != made(2)
    kinds = [session.reader.kind for session in one]
    assert {*kinds} == {"steady", "stalled", "leaving"}
    waits = {turn.wait_s for session in one for turn in session.turns[1:]}
    assert 1.0 in waits and len(waits) > 10
    assert all(session.turns[0].wait_s == 0 for session in one)


@pytest.mark.parametrize(
    ("group", "expected"),
    [(Clients(), 100), (Clients(requests=7), 7), (Clients(concurrency=2), 100),
     (Clients(concurrency=2, duration_s=5), None), (Clients(concurrency=2, requests=9), 9)],
)  # fmt: skip
def test_how_many_sessions(group: Clients, expected: int | None) -> None:
    (part,) = make_parts((group,), 1)
    assert part.expected == expected
    assert len(list(islice(part.sessions, 500))) == (expected or 500)


def test_a_duration_bounds_what_arrives(seed: int) -> None:
    (part,) = make_parts((Clients(rate=10, duration_s=20, start_s=5),), seed)
    times_s = [session.at_s for session in part.sessions]
    assert 120 < len(times_s) < 290
    assert 5 <= times_s[0] and times_s[-1] < 25


def test_a_trace_gives_arrivals_lengths_and_prefixes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens,prefix_hash_ids\n"
        "0,1030,5,7-8\n2,1030,6,7 9\n4,100,7,\n"
    )
    (part,) = make_parts((Clients(trace=str(path), rate_scale=2),), 1)
    sessions = list(part.sessions)
    assert [session.at_s for session in sessions] == [0, 1, 2]
    assert [session.turns[0].output_tokens for session in sessions] == [5, 6, 7]
    content = Content(1, 30_000)
    a, b, c = (content.ids(session, 0) for session in sessions)
    assert [len(a), len(b), len(c)] == [1030, 1030, 100]
    assert a[:512] == b[:512] and a[512:1024] != b[512:1024]
    assert [s.prompt_tokens(0) for s in sessions] == [1030, 1030, 100]


def test_rows_of_a_trace_that_are_no_requests_are_told(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,0,5\n")
    (part,) = make_parts((Clients(trace=str(path), rate_scale=2),), 1)
    assert describe(part) == "default: trace t (shared) at 2 times its rate, 1 rows left out"


def test_prefixes_are_shared_and_the_rest_is_unique() -> None:
    group = Clients(requests=20, input_tokens=40, prefix_tokens=64, prefix_groups=2, turns=2)
    (part,) = make_parts((group,), 1)
    sessions = list(part.sessions)
    content = Content(1, 30_000)
    prompts = [content.ids(session, 0) for session in sessions]
    assert {len(prompt) for prompt in prompts} == {104} == {s.prompt_tokens(0) for s in sessions}
    assert len({tuple(prompt[:64]) for prompt in prompts}) == 2
    assert len({tuple(prompt[64:]) for prompt in prompts}) == 20
    assert len(content.ids(sessions[0], 1)) == 40
    words = [content.text(session, 0).split() for session in sessions]
    assert {len(text) for text in words} == {104}
    assert all(300 <= token < 30_000 for prompt in prompts for token in prompt)
    assert Content(2, 30_000).ids(sessions[0], 0) != prompts[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "int"),
        ("clients = []", r"\[\[clients\]\]"),
        ("[[clients]]\nrat = 1", "rat"),
        ("[[clients]]\nrate = 'x'", "rate"),
        ("[[clients]]\nrate = -1", "rate of 'default' must be above 0"),
        ("[[clients]]\nturns = 'few'", "turns of 'default': 'few' is no quantity"),
        ("[[clients]]\nrate = 1\ntrace = 'x'", "trace and a rate"),
        ("[[clients]]\nrate_to = 1", "rate_to"),
        ("[[clients]]\nrate_scale = 2", "no effect without trace"),
        ("[[clients]]\nconcurrency = 2\nburstiness = 2", "no effect without rate"),
        ("[[clients]]\nthink_s = 2", "no effect without turns"),
        ("[[clients]]\ntrace = 'x'\noutput_tokens = 5", "output_tokens is what the trace says"),
        ("[[clients]]\noutput_tokens = 0", "output_tokens of 'default' must be at least 1"),
        ("[[clients]]\nturns = 0", "turns of 'default' must be at least 1"),
        ("[[clients]]\nstalled_share = 0.7\nleaving_share = 0.7", "more than all"),
        ("[[clients]]\ntool_share = 2", "share from 0 to 1"),
        ("[[clients]]\n[[clients]]", "a name of its own"),
        ("[[clients", "load.toml: "),
    ],
)
def test_files_that_make_no_sense(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "load.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as problem:
        read_clients(path)
    assert "\n" not in str(problem.value)


def test_a_file_of_several_groups(tmp_path: Path) -> None:
    path = tmp_path / "load.toml"
    path.write_text(
        '[[clients]]\nname = "chat"\nrate = 2\n[[clients]]\nname = "jobs"\nconcurrency = 4\n'
        'qos = "batch"\nstart_s = 3\n'
    )
    chat, jobs = read_clients(path)
    assert (chat.rate, chat.closed) == (2, False)
    assert (jobs.concurrency, jobs.closed, jobs.qos, jobs.start_s) == (4, True, "batch", 3)


def test_nobody_arrives() -> None:
    with pytest.raises(ValueError, match="send nothing"):
        make_parts((Clients(rate=0.001, duration_s=0.1),), 1)


def test_prices(tmp_path: Path) -> None:
    assert price_of("8xh100") == 8 * read_prices(SHIPPED)["h100"]
    with pytest.raises(ValueError, match="abacus: not in"):
        price_of("abacus")
    table = tmp_path / "p.csv"
    table.write_text("# mine\nname,usd_per_hour\nabacus,0.5\n")
    assert price_of("2xabacus", table) == 1.0
    table.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="name,usd_per_hour"):
        price_of("a", table)
