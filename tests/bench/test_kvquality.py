"""`bench kv-quality`: formats keep the quality they are offered for, and the command says so."""

import json

import pytest

pytest.importorskip("numba")

from tokenix.bench import kvquality
from tokenix.cli.main import main

KINDS = ("f16", "int8", "fp8", "int4")
"""f16 stands for f32 here: it is as near as makes no difference, and its kernels are compiled."""


@pytest.fixture(scope="module")
def report() -> kvquality.Report:
    return kvquality.measure(size=kvquality.QUICK, kinds=KINDS)


def test_formats_are_as_good_as_they_must_be(report: kvquality.Report) -> None:
    f16, int8, fp8, int4 = report.lines
    assert tuple(line.kind for line in report.lines) == KINDS
    assert f16.mean_kl == 0 and f16.top1_agreement == 1 and f16.exact_tokens_mean == 8
    assert 0 < int8.mean_kl < 2e-3 < fp8.mean_kl < 1e-2 < int4.mean_kl < 0.1
    assert int8.top1_agreement > 0.97 and fp8.top1_agreement > 0.94 and int4.top1_agreement > 0.85
    assert abs(int8.perplexity_change) < 0.02 and abs(int4.perplexity_change) < 0.2
    assert all(0 <= line.exact_tokens_mean <= 8 for line in report.lines)
    assert f16.step_ratio == 1 and all(line.step_ms > 0 for line in report.lines)


def test_fewer_bits_are_fewer_bytes(report: kvquality.Report) -> None:
    f16, int8, fp8, int4 = (line.bytes_per_token for line in report.lines)
    assert f16 / 2 < int8 == fp8 < 0.53 * f16
    assert f16 / 4 < int4 < f16 / 3


def test_the_command_prints_what_was_measured(
    report: kvquality.Report, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kvquality, "measure", lambda *_: report)
    assert main(["bench", "kv-quality", "--quick", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [line["kind"] for line in told["lines"]] == list(KINDS)
    assert told["size"]["text_tokens"] == kvquality.QUICK.text_tokens
    assert main(["bench", "kv-quality"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows[1:5]] == list(KINDS)
