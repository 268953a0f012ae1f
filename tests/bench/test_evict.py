"""`tokenix bench evict`: no policy finds more than Belady, nor Belady more than an infinite one."""

import json
from pathlib import Path

import pytest

from tokenix.bench import evict
from tokenix.bench.traces import Request
from tokenix.cli.main import main
from tokenix.syscalls.prefixcache import count_hits

TRACE = """arrival_s,prompt_tokens,output_tokens,prefix_hash_ids
0,1500,10,0-2
1,1500,10,0 5-6
2,1500,10,0-2
"""


def test_order_of_the_bounds() -> None:
    report = evict.study("chats", evict.make_chats(3, 300.0), (50, 200, 1000, 100_000))
    for line in report.lines:
        assert set(line.policies) == set(evict.POLICIES)
        assert max(line.policies.values()) <= line.belady <= report.infinite
        assert line.foreseeable <= line.belady
    assert set(report.lines[-1].policies.values()) == {report.infinite}
    assert report.infinite == report.lines[-1].belady > 0.3


def test_belady_by_hand() -> None:
    visits = [(float(at), blocks) for at, blocks in enumerate([[0, 1], [0, 2], [0, 1], [0, 2]])]
    assert evict.count_infinite(visits) == 5
    assert evict.count_belady(visits, 2) == 4
    assert evict.count_belady(visits, 1) == 3
    assert [count_hits(visits, "lru", size) for size in (1, 2, 3)] == [3, 3, 5]


def test_a_block_counts_with_those_before_it() -> None:
    requests = [Request(0, 9, 1, blocks=(1, 9)), Request(1, 9, 1, blocks=(2, 9))]
    assert evict.count_infinite(evict.visits_of(requests)) == 0


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "small.csv"
    trace.write_text(TRACE, encoding="utf-8")
    command = ["bench", "evict", "--trace", str(trace), "--sizes", "3, 8"]
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["requests"], told["accesses"], told["distinct"]) == (3, 9, 5)
    assert told["infinite"] == pytest.approx(4 / 9)
    assert [line["blocks"] for line in told["lines"]] == [3, 8]
    assert told["lines"][1]["policies"]["hit-density"] == pytest.approx(4 / 9)
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == [
        "blocks",
        "belady",
        "foreseeable",
    ]


@pytest.mark.parametrize("sizes", ["0", "a", ",", "-3"])
def test_sizes_are_whole_numbers(sizes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "evict", f"--sizes={sizes}"]) == 2
    assert "--sizes" in capsys.readouterr().err


def test_a_trace_without_blocks_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "plain.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,9,9\n", encoding="utf-8")
    assert main(["bench", "evict", "--trace", str(trace)]) == 2
    assert "plain" in capsys.readouterr().err
    assert main(["bench", "evict", "--trace", str(tmp_path / "none.csv")]) != 0
