"""The model on the fake GPU against the CPU driver, and its ways of running against each other."""

from dataclasses import replace

import numpy as np
import pytest

from tokenix.drivers.cpu.device import CpuDevice
from tokenix.drivers.cuda import device as devices
from tokenix.drivers.cuda import layers, step
from tokenix.drivers.ops import DeviceFault, Sampled
from tokenix.drivers.sampling import SamplingParams
from tokenix.models.registry import load_image
from tokenix.tests.cpu.conftest import FAMILIES, RandomWeights
from tokenix.tests.cuda import rig
from tokenix.tests.cuda.fake import twin_kernels
from tokenix.tests.device.machine import GREEDY, Harness, Machine, same, words
from tokenix.tests.models.tiny_models import write_gguf, write_hf

pytestmark = pytest.mark.timeout(400)
"""The CPU driver may have to compile first."""

VOCAB = rig.TINY.vocab_tokens
ALL = SamplingParams(logprobs=VOCAB)
PROMPTS = (3, 17, 40)
NEW = 6


def big_heads(config):
    """The same family with heads that there are kernels for."""
    heads = min(config.heads, 16 * config.kv_heads)
    return replace(config, heads=heads, head_dim=64, rope=replace(config.rope, dim=64))


def machine(make, config=rig.TINY):
    return Machine(Harness("cuda", config.vocab_tokens, 16, lambda f, s, page: make(f, s)))


def on_gpu(config=rig.TINY, weights=rig.WEIGHTS, **options):
    def make(frames, slots):
        return rig.device(
            config=config, weights=weights, frames=frames, host_slots=slots, **options
        )

    return machine(make, config)


def on_cpu(config, weights):
    def make(frames, slots):
        return CpuDevice(
            config,
            weights,
            frames=frames,
            host_slots=slots,
            kv_dtype="f32",
            dense="f32",
            threads=1,
        )

    return machine(make, config)


def drawn(machine, params=GREEDY, prompts=PROMPTS, chunk=None):
    """What processes with random prompts draw together; the first is prefilled in chunks."""
    vocab = machine.harness.vocab
    procs = [
        machine.proc(words(length, vocab, seed), range(6 * seed, 6 * seed + 6), params)
        for seed, length in enumerate(prompts)
    ]
    while chunk is not None and procs[-1].done < prompts[-1] - chunk:
        machine.step(procs[-1], chunk=chunk)
    machine.decode(*procs, tokens=NEW)
    machine.close()
    assert rig.failures() == []
    return [proc.drawn for proc in procs]


def equal(a, b, tolerance):
    return all(same(x, y, tolerance) for x, y in zip(a, b, strict=True))


@pytest.fixture(scope="module")
def plain():
    return drawn(on_gpu())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_draws_what_the_cpu_draws(fake, family):
    config = big_heads(FAMILIES[family])
    weights = RandomWeights(config)
    assert equal(drawn(on_gpu(config, weights)), drawn(on_cpu(config, weights)), tolerance=2e-4)


def test_the_shipped_model_draws_what_the_cpu_draws(fake):
    """In float32, greedy, on ordinary text."""
    image = load_image("smollm2")
    text = "The capital of France is Paris. The capital of Italy is"
    tokens = image.tokenizer.encode(text)
    streams = []
    for make in (on_gpu, on_cpu):
        bench = make(image.config, image.weights)
        proc = bench.proc(tokens, [2, 1, 0], GREEDY)
        bench.decode(proc, tokens=10)
        bench.close()
        streams.append(proc.drawn)
    assert same(*streams, tolerance=1e-3)
    assert "Rome" in image.tokenizer.decode([one.token for one in streams[0]])


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0", "Q4_K"])
def test_files_of_both_formats_draw_what_the_cpu_draws(fake, tmp_path, kind):
    """Blocks of 4 and 8 bits count as the numbers that they stand for."""
    write_gguf(tmp_path / "tiny.gguf", kind=kind)
    files = [tmp_path / "tiny.gguf"]
    if kind in ("F32", "BF16"):
        write_hf(tmp_path / "tiny", dtype=kind)
        files.append(tmp_path / "tiny")
    streams = [
        drawn(make(image.config, image.weights), prompts=(3, 20))
        for image in map(load_image, files)
        for make in (on_gpu, on_cpu)
    ]
    assert all(equal(streams[0], other, tolerance=1e-3) for other in streams[1:])


def test_a_graph_computes_what_it_was_captured_of(fake, monkeypatch):
    captured = on_gpu()
    first = drawn(captured)
    assert [graph for graph in captured.device._step._graphs.values() if graph is not None]

    def run(self, bucket, splits):
        self._layers.run(bucket, splits)
        self._layers.head(bucket, "x")
        self._drawing.enqueue(bucket)

    monkeypatch.setattr(step.ModelStep, "_replay", run)
    assert equal(drawn(on_gpu()), first, tolerance=0.0)


@pytest.mark.parametrize("call", ["cuStreamBeginCapture_v2", "cuGraphInstantiateWithFlags"])
def test_a_step_that_cannot_be_captured_is_launched(fake, plain, call):
    """It draws the same; and the others are captured."""
    bench = on_gpu()
    fake.fail(call, 901)
    assert equal(drawn(bench), plain, tolerance=0.0)
    assert "(901)" in bench.device._step.refused


def test_a_gpu_that_is_lost_in_a_capture_is_lost(fake):
    bench = on_gpu()
    procs = [bench.proc(words(5, VOCAB, i), [i]) for i in range(2)]
    bench.decode(*procs, tokens=2)
    fake.fail("cuStreamBeginCapture_v2", 700)
    fault = bench.wait(bench.start(*procs))
    assert isinstance(fault, DeviceFault) and "lost" in fault.reason
    bench.close()


def test_a_captured_step_is_one_launch_of_a_graph(fake):
    """From the third step of a bucket on, no kernel is launched one by one."""
    bench = on_gpu()
    proc = bench.proc(words(5, VOCAB), range(3))
    calls = []
    driver = bench.device._driver
    plain = driver._check
    driver._check = lambda call, *args: (calls.append(call), plain(call, *args))[1]
    bench.decode(proc, tokens=3)  # prefill, warm, captured
    calls.clear()
    bench.decode(proc, tokens=1)
    assert "cuLaunchKernel" not in calls and calls.count("cuGraphLaunch") == 1
    assert calls.count("cuMemcpyHtoDAsync") == 1 and calls.count("cuMemcpyDtoHAsync") == 2
    bench.close()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_a_bucket_pads_with_rows_that_do_nothing(fake, count):
    """Rows of a batch that fills no bucket draw what they draw alone, and no other page changes."""
    bench = on_gpu()
    procs = [bench.proc(words(4 + i, VOCAB, i), [3 * i, 3 * i + 1]) for i in range(count)]
    frame = bench.device._arena.at(31)
    bench.device._driver.fill(frame, 7, 16, bench.device._stream)
    bench.decode(*procs, tokens=5)
    bench.close()
    for i, proc in enumerate(procs):
        lone = on_gpu()
        alone = lone.proc(words(4 + i, VOCAB, i), [0, 1])
        lone.decode(alone, tokens=5)
        lone.close()
        assert same(alone.drawn, proc.drawn, 1e-4)


def test_bounds_of_buffers_change_nothing(fake, plain, monkeypatch):
    for module in (devices, step):
        monkeypatch.setattr(module, "MAX_PASS_TOKENS", 24)
        monkeypatch.setattr(module, "MAX_ROWS", 2)
    assert equal(drawn(on_gpu()), plain, tolerance=1e-4)


def test_rows_that_attend_in_turns_change_nothing(fake, plain, monkeypatch):
    monkeypatch.setattr(layers, "PARTS_BYTES", 4 * 2 * 64 * 2 * 3)
    assert equal(drawn(on_gpu()), plain, tolerance=1e-4)


@pytest.mark.parametrize("pass_tokens", [2048, 24])
def test_chunks_of_prompts_attend_in_tiles(fake, monkeypatch, pass_tokens):
    """As if each token of a prompt were decoded; beside rows that are."""
    monkeypatch.setattr(step, "MAX_PASS_TOKENS", pass_tokens)
    streams = []
    for lacking in ("", "prefill"):
        bench = on_gpu(
            dense="f16",
            kv_dtype="f16",
            kernels_by=lambda *shape, lacking=lacking: {
                op: twin for op, twin in twin_kernels(*shape).items() if op != lacking
            },
        )
        early = bench.proc(words(5, VOCAB, 1), range(3))
        bench.decode(early, tokens=2)
        late = [bench.proc(words(n, VOCAB, n), range(n, n + 5)) for n in (3, 12, 20)]
        late[2].tokens += words(50, VOCAB, 2)
        late[2].prompt = len(late[2].tokens)
        assert bench.step(early, *late, chunk=30)[3] is None
        bench.decode(early, *late, tokens=4)
        bench.close()
        streams.append([proc.drawn for proc in (early, *late)])
    assert equal(*streams, tolerance=2e-2)


def test_chunks_change_nothing(fake, plain):
    assert equal(drawn(on_gpu(), chunk=7), plain, tolerance=1e-4)


def test_a_context_of_several_splits(fake):
    """Three splits of 256 keys, in both buckets of splits."""
    config = replace(rig.TINY, max_context_tokens=1024)
    weights = rig.WEIGHTS
    gpu, cpu = on_gpu(config, weights), on_cpu(config, weights)
    streams = []
    for bench in (gpu, cpu):
        big = Machine(bench.harness, frames=48)
        bench.close()
        proc = big.proc(words(510, VOCAB), range(40))
        big.decode(proc, tokens=5)
        big.close()
        streams.append(proc.drawn)
    assert same(*streams, tolerance=2e-4)


@pytest.mark.parametrize(("kind", "bound"), [("bf16", 1e-2), ("f16", 1e-4)])
def test_narrow_numbers_stay_near(fake, plain, kind, bound):
    """Mean KL of whole distributions of the same tokens, weights and KV of 16 bits against 32."""
    found = []
    for options in ({}, {"dense": kind, "kv_dtype": kind}):
        bench = on_gpu(**options)
        tokens = words(60, VOCAB)
        proc = bench.proc(tokens[:20], range(6), ALL)
        for token in tokens[20:]:
            (result,) = bench.step(proc)
            assert isinstance(result, Sampled)
            proc.tokens[-1] = token
        bench.close()
        found.append([dict(one.top) for one in proc.drawn])
    divergence = [
        sum(np.exp(p) * (p - narrow[token]) for token, p in wide.items())
        for wide, narrow in zip(*found, strict=True)
    ]
    assert 0 <= np.mean(divergence) < bound


def test_a_round_trip_changes_no_bit_of_16_bit_numbers(fake):
    """Preempted in the middle and brought back elsewhere, against left alone."""
    streams = []
    for preempted in (False, True):
        bench = on_gpu(dense="bf16", kv_dtype="bf16")
        proc = bench.proc(words(33, VOCAB), [0, 1, 2, 3], ALL)
        bench.decode(proc, tokens=NEW)
        if preempted:
            bench.swap_out((0, 0, 1), (1, 1, 1), (2, 2, 1))
            bench.wipe(0, 1, 2)
            bench.swap_in((2, 1, 10), (0, 1, 12), (1, 1, 11))
            proc.move([12, 11, 10, 3])
        bench.decode(proc, tokens=NEW)
        bench.close()
        streams.append(proc.drawn)
    assert same(*streams, tolerance=0.0)
