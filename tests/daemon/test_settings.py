"""`tokenix config`, `tokenix keys`, `completion`, `abi`, `show`: no daemon is needed."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from tokenix.cli.main import main
from tokenix.cli.status import FAILED, OK, USAGE
from tokenix.daemon.sizes import bytes_of
from tokenix.gateway import keyfile
from tokenix.gateway.keys import KeyRing
from tokenix.tests.daemon.daemons import command, environment


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings" / "tokenix" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


def config(home: Path, *words: str, **env: str) -> dict[str, Any]:
    done = command("config", "show", *words, "--json", env=environment(home, **env))
    assert done.returncode == OK and done.stderr == "", done.stderr
    return json.loads(done.stdout)


def test_precedence_and_origins(tmp_path: Path, file: Path) -> None:
    file.write_text(
        'model = "of-the-file"\ndevice_pages = 12\nthreads = 1\nswap_bytes = "2G"\nswap_dir = "."\n'
        '[http]\nport = 9000\nhost = "127.0.0.2"\n[http.alias]\n"gpt-4" = "smollm2"\n'
        "[sched]\ntarget_stream_s = 2.5\n[kernel]\nimage_idle_s = 3\n"
    )
    found = config(
        tmp_path, "--threads", "3", TOKENIX_THREADS="2", TOKENIX_HTTP_PORT="9001",
        TOKENIX_UNRELATED="x",
    )  # fmt: skip
    expected = {
        "model": ("of-the-file", str(file)),
        "device_pages": (12, str(file)),
        "threads": (3, "flag"),
        "swap_bytes": (2 << 30, str(file)),
        "http.port": (9001, "TOKENIX_HTTP_PORT"),
        "http.host": ("127.0.0.2", str(file)),
        "http.alias": ({"gpt-4": "smollm2"}, str(file)),
        "sched": ({"target_stream_s": 2.5}, str(file)),
        "kernel.image_idle_s": (3, str(file)),
        "policy": ("progress", "default"),
        "drain_s": (30, "default"),
        "log.level": ("info", "default"),
    }
    assert {name: (found[name]["value"], found[name]["from"]) for name in expected} == expected
    empty = config(tmp_path, TOKENIX_HTTP_KEYS="", TOKENIX_HTTP_PORT="", TOKENIX_SOCKET="")
    assert (empty["http.keys"]["value"], empty["http.port"]["value"]) == (None, 9000)
    assert empty["socket"] == {"value": None, "from": "default"}
    text = command("config", "show", env=environment(tmp_path)).stdout
    assert "image_idle_s" in text and str(file) in text and "gpt-4=smollm2" in text


def test_which_file(tmp_path: Path, file: Path) -> None:
    def path(*words: str, **env: str) -> str:
        return command("config", "path", *words, env=environment(tmp_path, **env)).stdout.strip()

    assert path() == str(file), "where one would be"
    file.write_text("threads = 1\n")
    assert path() == str(file)
    other = tmp_path / "other.toml"
    other.write_text("threads = 2\n")
    assert path(TOKENIX_CONFIG=str(other)) == str(other)
    assert config(tmp_path, TOKENIX_CONFIG=str(other))["threads"]["value"] == 2
    assert config(tmp_path, "--config", str(file), TOKENIX_CONFIG=str(other))["threads"][
        "from"
    ] == str(file)
    done = command("config", "show", "--config", "nowhere.toml", env=environment(tmp_path))
    assert done.returncode == FAILED and "nowhere.toml" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense = 1", "nonsense"),
        ("[http]\nprot = 1", "[http][prot]"),
        ("[htpt]\nport = 1", "htpt"),
        ('[http]\nport = "many"', "[http][port]"),
        ("[http]\nport = 1.5", "[http][port]"),
        ("[http]\nport = 70000", "port"),
        ("http = 3", "http"),
        ("device_pages = true", "device_pages"),
        ("swap_resume = 7", "swap_resume"),
        ("[kernel]\npipe_tokens = []", "pipe_tokens"),
        ("[kernel]\nnonsense = 1", "nonsense"),
        ("[sched]\nmargin_s = 'x'", "margin_s"),
        ("[log]\nlevel = 'loud'", "level"),
        ("device_pages = ", "Invalid value"),
        ("\xff", "config.toml"),
    ],
)
def test_mistakes_in_the_file_are_one_line(
    text: str, said: str, tmp_path: Path, file: Path
) -> None:
    file.write_bytes(text.encode("latin-1"))
    done = command("config", "show", env=environment(tmp_path))
    assert (done.returncode, done.stdout) == (USAGE, ""), done.stdout
    assert done.stderr.startswith("tokenix: error: ") and done.stderr.count("\n") == 1
    assert said in done.stderr and "config.toml" in done.stderr


REFUSED = [
    ("policy = 'magic'", "no policy 'magic'"),
    ("driver = 'tpu'", "no driver 'tpu'"),
    ("kv_dtype = 'f8'", "kv_dtype must be one of"),
    ("weights = 'none'", "weights must be one of"),
    ("device_pages = 0", "device_pages must be at least 1"),
    ("threads = -1", "threads must be at least 1"),
    ("swap_bytes = '1G'", "swap_dir and swap_bytes go together"),
    ("swap_resume = true", "swap_resume needs image_dir"),
    ("tensor_parallel = 2", "boot with driver='cuda'"),
    ("[sched]\nnonsense = 1", "nonsense"),
    ("[sched]\ntarget_stream_s = -1", "target_stream_s"),
    ("[tenants]\nnobody-of-this-name = 'acme'", "no user 'nobody-of-this-name'"),
    ("socket_group = 'nobody-of-this-name'", "no group 'nobody-of-this-name'"),
    ("[http]\nhost = '0.0.0.0'", "without API keys"),
    ("[http]\nkeys = 'nowhere.jsonl'", "nowhere.jsonl"),
    ("[http.limits]\nnonsense = 1", "no limit 'nonsense'"),
    ("socket = '{home}/s'\n[http]\nuds = '{home}/s'", "--http.uds and --socket are both"),
]


def test_what_serve_refuses_is_not_shown(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    env = environment(tmp_path)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    for text, said in REFUSED:
        file.write_text(text.replace("{home}", str(tmp_path)))
        code, shown = main(["config", "show"]), capsys.readouterr()
        assert code in (FAILED, USAGE) and shown.out == "", (text, shown.out)
        assert said in shown.err and shown.err.count("\n") == 1, shown.err
    served = command("serve", env=env)
    assert (served.returncode, served.stderr) == (code, shown.err)


def test_api_keys(tmp_path: Path) -> None:
    env = environment(tmp_path)
    path = tmp_path / "settings" / "tokenix" / "keys.jsonl"
    secret = command("keys", "new", "--tenant", "acme", env=env).stdout.strip()
    made = json.loads(command("keys", "new", "--root", "--json", env=env).stdout)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret not in path.read_text() and made["key"] not in path.read_text()
    known = json.loads(command("keys", "list", "--json", env=env).stdout)
    assert [(key["tenant"], key["role"]) for key in known] == [
        ("acme", "tenant"),
        ("default", "root"),
    ]
    ring = KeyRing([keyfile.as_api_key(key) for key in keyfile.read_keys(path)], "nobody")
    caller = ring.find(b"Bearer " + secret.encode())
    assert caller is not None and (caller.tenant, caller.role) == ("acme", "tenant")
    assert ring.find(b"Bearer tkx-wrong") is None

    assert command("keys", "revoke", known[0]["id"], env=env).returncode == OK
    assert [key.tenant for key in keyfile.read_keys(path)] == ["default"]
    done = command("keys", "revoke", known[0]["id"], env=env)
    assert done.returncode == FAILED and known[0]["id"] in done.stderr
    assert "root" in command("keys", "list", env=env).stdout
    assert command("keys", "new", "--tenant", " ", env=env).returncode == USAGE
    assert command("keys", "new", env=env).returncode == USAGE
    odd = command("keys", "new", "--tenant", "a\nb", env=env)
    assert odd.returncode == USAGE and "one line" in odd.stderr and odd.stderr.count("\n") == 1
    nowhere = tmp_path / "none.jsonl"
    done = command("keys", "revoke", "x", "--file", str(nowhere), env=env)
    assert done.returncode == FAILED and "no key 'x'" in done.stderr and not nowhere.exists()
    both = command("keys", "new", "--tenant", "ops", "--root", env=env)
    assert both.returncode == USAGE and "--tenant" in both.stderr
    listed = command("keys", "list", env={**env, "TOKENIX_HTTP_KEYS": ""})
    assert listed.returncode == OK and "root" in listed.stdout
    with path.open("a") as more:
        more.write("nonsense\n")
    done = command("keys", "list", env=env)
    assert done.returncode == USAGE and "line 2" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("1.5K", 1536), ("512M", 512 << 20), ("2g", 2 << 30), ("1TiB", 1 << 40),
     ("3 MB", 3 << 20)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "G", "nan", "1e999", "1X"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        bytes_of(text)


@pytest.mark.parametrize("text", ["999999999T", "1e300T", "9223372036854775808"])
def test_sizes_beyond_any_disk(text: str) -> None:
    with pytest.raises(ValueError, match="a size is at most 4194304T"):
        bytes_of(text)


def test_completion_scripts(tmp_path: Path) -> None:
    for shell, word in (("bash", "complete"), ("zsh", "#compdef"), ("fish", "complete -c")):
        done = command("completion", shell, env=environment(tmp_path))
        assert done.returncode == OK and word in done.stdout
        assert all(name in done.stdout for name in ("vmstat", "swapon", "reverse"))


def test_schema_of_the_socket(tmp_path: Path) -> None:
    done = command("abi", "--schema", env=environment(tmp_path))
    schema = json.loads(done.stdout)
    assert schema["$schema"] and schema["version"] >= 1
    version = command("abi", env=environment(tmp_path)).stdout
    assert int(version) == schema["version"]


def test_show_a_model(tmp_path: Path) -> None:
    env = environment(tmp_path)
    facts = json.loads(command("show", "smollm2", "--json", env=env).stdout)
    assert facts["architecture"] == "llama" and facts["layers"] == 30
    assert facts["parameters"] == 134_515_008 and facts["context_tokens"] == 8192
    assert "Q4_1" in facts["quantization"] and facts["chat_template"]
    assert facts["default_weights"] in ("native", "exact")
    text = command("show", "smollm2", env=env).stdout
    assert "134.5M" in text and facts["path"] in text
    assert command("show", "nothing", env=env).returncode == FAILED
