"""`tokenix sim` as people call it."""

import json
from pathlib import Path
from textwrap import dedent

import pytest

from tokenix.cli.main import main
from tokenix.sched.policies import POLICIES

ROOT = Path(__file__).resolve().parents[2]

KEYS = [
    "policy", "rate_scale", "kv_gb", "reader", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s",
    "visible_stall_rate", "goodput", "output_tokens_per_s", "rejected", "wasted_tokens", "swap_gb",
    "digest",
]  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    lines = [f"{i * 0.3},{200 + 31 * (i % 6)},{30 + 7 * (i % 4)}\n" for i in range(20)]
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(lines))
    return path


def test_json_has_a_run_for_each_load_and_policy(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sim", "--trace", str(trace), "--device", "H100", "--model", "Llama-3.1-8B"]
    words += ["--policy", "fcfs,progress", "--rate-scale", "1,2", "--kv-gb", "0.5", "--reader"]
    words += ["10", "--link-gbps", "25", "--host-pools", "4", "--seed", "1", "--json"]
    assert main(words) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(r["policy"], r["rate_scale"]) for r in runs] == [
        ("fcfs", 1.0), ("progress", 1.0), ("fcfs", 2.0), ("progress", 2.0)
    ]  # fmt: skip
    assert all(list(run) == KEYS for run in runs)
    assert runs[0]["kv_gb"] == pytest.approx(0.5, rel=0.01)


def test_a_table_for_people_and_what_was_left_out(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "--trace", str(trace), "--kv-pages", "20", "--duration", "3"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1].startswith("progress")
    assert "were left out" in captured.err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--policy", "magic"], "no policy 'magic'"),
        (["--policy", "magic:SJF"], "FILE.py:NAME"),
        (["--device", "a100"], "a100-40 or a100-80"),
        (["--rate-scale", "fast"], "takes numbers"),
        (["--rate-scale", "0"], "positive"),
        (["--kv-gb", "1", "--kv-pages", "3"], "either"),
        (["--set", "margin_s"], "NAME=NUMBER"),
        (["--set", "nonsense=1"], "nonsense"),
        (["--weight", "7"], "NAME=NUMBER"),
        (["--weight", "default=0"], "weight is positive"),
        (["--weight", "ann=2"], "no tenant of trace is called 'ann'; there are default"),
        (["--copy-contention", "-1"], "copy_contention must not be negative"),
        (["--warmup", "1e6"], "no request"),
        (["--duration", "0"], "duration must be positive"),
        (["--kv-gb", "inf"], "finite number above 0"),
        (["--kv-gb", "1e6"], "at most 8,000,000 pages"),
        (["--kv-pages", "9" * 20], "at most 8,000,000 pages"),
        (["--host-pools", "1e9"], "at most 8,000,000 pages"),
        (["--host-pools", "nan"], "--host-pools"),
        (["--link-gbps", "nan"], "--link-gbps"),
        (["--copy-contention", "inf"], "finite number"),
        (["--warmup", "nan"], "--warmup"),
        (["--drain", "-1"], "at least 0"),
        (["--start", "-1"], "at least 0"),
        (["--declared", "0"], "--declared"),
        (["--jobs", "0"], "at least 1"),
        (["--tp", "0"], "at least 1"),
        (["--policy", ","], "--policy takes one or more"),
        (["--weight", "=3"], "NAME=NUMBER"),
        (["--plot", "out.xyz"], "must end in one of"),
        (["--plot", "out"], "must end in one of"),
        (["--plot", "/"], "that is a folder"),
    ],
)
def test_wrong_options_are_one_line(
    trace: Path, words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "--trace", str(trace), *words]) == 2
    err = capsys.readouterr().err
    assert why in err and err.count("\n") == 1


def own_policy(folder: Path) -> str:
    """The file that sched/README.md shows."""
    text = (ROOT / "sched" / "README.md").read_text()
    _, begin, rest = text.partition("    import dataclasses\n")
    code, end, _ = (begin + rest).partition("\nIn a file of yours")
    assert begin and end
    path = folder / "sjf.py"
    path.write_text(dedent(code))
    return f"{path}:SJF"


def test_a_policy_of_ones_own(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = own_policy(tmp_path)
    monkeypatch.setitem(POLICIES, mine, POLICIES["fcfs"])  # so that it is gone afterwards
    del POLICIES[mine]
    words = ["sim", "--trace", str(trace), "--kv-pages", "60", "--rate-scale", "8", "--json"]
    assert main([*words, "--policy", f"fcfs,{mine}"]) == 0
    fcfs, sjf = json.loads(capsys.readouterr().out)["runs"]
    assert sjf["policy"] == mine and sjf["digest"] != fcfs["digest"]


@pytest.mark.parametrize(
    ("code", "code_of_exit", "why"),
    [
        (None, 1, "sjf.py: No such file"),
        ("x = 1", 2, "no policy 'SJF'; it has none"),
        ("x =", 2, "sjf.py: SyntaxError"),
        ("1 / 0", 2, "sjf.py: ZeroDivisionError"),
    ],
)
def test_a_file_without_a_policy(
    trace: Path, tmp_path: Path, code: str | None, code_of_exit: int, why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "sjf.py"
    if code is not None:
        path.write_text(code)
    assert main(["sim", "--trace", str(trace), "--policy", f"{path}:SJF"]) == code_of_exit
    err = capsys.readouterr().err
    assert why in err and err.count("\n") == 1


def test_no_plot_is_drawn_where_there_is_no_folder(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sim", "--trace", str(trace), "--plot", str(tmp_path / "none" / "out.png")]
    assert main(words) == 1
    captured = capsys.readouterr()
    assert "No such file or directory" in captured.err and not captured.out
    assert main(["bench", "step", *words[-2:]]) == 1


def test_a_hyphen_is_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--trace", "-"]) == 2
    assert "--trace" in capsys.readouterr().err


@pytest.mark.parametrize(
    "base",
    [
        ["--load", "0"],
        ["--pool", "nan"],
        ["--pool", "1e9"],
        ["--what", "seed", "--values", "1,1.5"],
    ],
)
def test_a_sweep_around_nothing(
    trace: Path, base: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sim", "sweep", "--trace", str(trace)]
    if "--what" not in base:
        words += ["--what", "link", "--values", "3"]
    assert main([*words, *base]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_missing_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--trace", "nowhere.csv"]) == 1
    assert "nowhere.csv: No such file" in capsys.readouterr().err


def test_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "presets", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {gpu["name"] for gpu in listed["devices"]} == {
        "rtx4090", "rtxpro6000", "a100-40", "a100-80", "h100", "h200", "b200"
    }  # fmt: skip
    assert {model["name"] for model in listed["models"]} == {
        "llama-3.1-8b", "qwen2.5-7b", "qwen2.5-32b", "qwen3-30b-a3b", "llama-3.3-70b"
    }  # fmt: skip
    assert all(entry["source"] for entry in [*listed["devices"], *listed["models"]])
    assert main(["sim", "presets"]) == 0
    assert "llama-3.1-8b" in capsys.readouterr().out


def test_check_prints_errors_by_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rtx4090_small.csv"
    lines = [f"{i},200,20,0.05,0.4\n" for i in range(5)]
    path.write_text("arrival_s,prompt_tokens,output_tokens,ttft_s,decode_s\n" + "".join(lines))
    assert main(["sim", "check", "--measured", str(path), "--json"]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert file["file"] == str(path)
    assert set(file["errors"]) == {f"{n}_p{p}" for n in ("ttft", "tpot") for p in (50, 90, 95, 99)}
    assert main(["sim", "check", "--measured", str(path)]) == 0
    assert "mean of the absolute errors" in capsys.readouterr().out


def test_plot(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    image = tmp_path / "out.png"
    words = ["sim", "--trace", str(trace), "--rate-scale", "1,2", "--plot", str(image)]
    assert main([*words, "--policy", "fcfs,progress"]) == 0
    assert image.read_bytes().startswith(b"\x89PNG")


def test_grid_resumes_and_concludes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{i * 0.3},{200 + 31 * (i % 6)},{5 + i % 4}\n" for i in range(70)]
    text = "arrival_s,prompt_tokens,output_tokens\n" + "".join(lines)
    (tmp_path / "made.csv").write_text(text)
    out = tmp_path / "grid.jsonl"
    words = ["sim", "grid", "--points", "1", "--out", str(out), "--folder", str(tmp_path)]
    words += ["--trace", "made", "--device", "h100"]
    assert main([*words, "--json"]) == 0
    captured = capsys.readouterr()
    assert "0 of 8 runs are done" in captured.err
    assert json.loads(captured.out)["every"]["points"] == 1
    whole = out.read_text()
    assert main(words) == 0
    assert "1 points" in capsys.readouterr().out and out.read_text() == whole
    assert main([*words, "--redo", "progress"]) == 0
    assert "7 of 8 runs are done" in capsys.readouterr().err
    assert len(out.read_text().splitlines()) == 9
    assert main([*words, "--seed", "2", "--summary"]) == 2
    assert "no point has results" in capsys.readouterr().err


def test_a_grid_of_some_policies_has_no_summary_and_has_not_failed(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace.rename(tmp_path / "azure_code_2023.csv")
    words = ["sim", "grid", "--points", "1", "--trace", "azure_code_2023", "--folder"]
    words += [str(tmp_path), "--policy", "fcfs", "--out", str(tmp_path / "out.jsonl")]
    assert main(words) == 0
    assert "no summary" in capsys.readouterr().err
    assert (tmp_path / "out.jsonl").read_text().count("\n") == 1
    for more in (["--points", "0"], ["--redo", "magic"], ["--policy", "magic"]):
        assert main([*words, *more] if more[0] == "--redo" else words[:2] + more + words[-2:]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and (more[1] in err)


def test_sweep(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    image = tmp_path / "out.png"
    words = ["sim", "sweep", "--trace", str(trace), "--what", "reader", "--values", "5,40"]
    words += ["--policy", "fcfs,progress", "--pool", "0.1"]
    assert main([*words, "--json", "--plot", str(image)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(run["reader"], run["policy"]) for run in shown["runs"]] == [
        (5.0, "fcfs"), (5.0, "progress"), (40.0, "fcfs"), (40.0, "progress")
    ]  # fmt: skip
    assert image.read_bytes().startswith(b"\x89PNG")
    assert main(words) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert main([*words[:4], "--what", "moon"]) == 2
    assert "there are load, pool" in capsys.readouterr().err
