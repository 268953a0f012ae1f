"""Four ranks compute what one does, whatever happens to pages."""

import tempfile
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.driver")

from tokenix.drivers.cuda.matrix import Fp8Matrix
from tokenix.drivers.ops import CopyDone, CopyFailed, CopyFrame, RowFault
from tokenix.drivers.sampling import SamplingParams
from tokenix.tests.cuda import fake as fakes
from tokenix.tests.cuda import rig
from tokenix.tests.device.line import Gate, Line
from tokenix.tests.device.machine import GREEDY, Harness, Machine, same, words

fakes.load()
parts = pytest.importorskip("tokenix.tests.cuda_ranks.parts")

pytestmark = pytest.mark.timeout(400)
"""Processes that import torch, on a busy machine."""

VOCAB = parts.CONFIG.vocab_tokens
RANKS = 4
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=5, logprobs=2)
TOLERANCE = 1e-4
NEW = 5


def machine(make):
    return Machine(Harness("cuda", VOCAB, 16, lambda f, s, page: make(f, s), tolerance=TOLERANCE))


@pytest.fixture(scope="module")
def gate():
    """Of the ranks' compute thread."""
    return Gate()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, gate):
    fakes.load().reset()
    place = tmp_path_factory.mktemp("meeting")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(place))
        made = machine(lambda f, s: parts.device(RANKS, frames=f, host_slots=s, faults=gate))
    assert list(place.iterdir()) == [], "torch would look for it when it forgets the group"
    yield made
    made.close()
    assert rig.failures() == []


@pytest.fixture(scope="module")
def one(ranks):
    """Made later: a device starts with a clean fake GPU."""
    weights = parts.open_weights()
    made = machine(
        lambda f, s: rig.device(config=parts.CONFIG, weights=weights, frames=f, host_slots=s)
    )
    yield made
    made.close()


@pytest.fixture
def generation():
    """One that no slot had."""
    return next(_generations)


_generations = count(1)


def procs(bench):
    return [
        bench.proc(words(length, VOCAB, seed), range(6 * seed, 6 * seed + 4), params)
        for seed, (length, params) in enumerate([(3, GREEDY), (20, SAMPLED), (40, GREEDY)])
    ]


def drawn(bench):
    some = procs(bench)
    bench.decode(*some, tokens=NEW)
    return [proc.drawn for proc in some]


@pytest.fixture(scope="module")
def plain(one):
    return drawn(one)


def equal(a, b):
    return all(same(x, y, TOLERANCE) for x, y in zip(a, b, strict=True))


def test_they_are_a_device_of_whole_pages(ranks, one):
    told, alone = ranks.device.info(), one.device.info()
    for name in ("name", "frames", "frame_bytes", "host_slots", "vocab_tokens", "page_tokens"):
        assert getattr(told, name) == getattr(alone, name), name
    assert told.max_context_tokens == alone.max_context_tokens


def test_they_draw_what_one_draws(ranks, plain):
    """Prompts together, then decodes: eager, captured, replayed."""
    assert equal(drawn(ranks), plain)


def test_chunks_and_batches_change_nothing(ranks, plain):
    some = procs(ranks)
    while some[2].done < 32:
        ranks.step(some[2], chunk=8)
    ranks.decode(some[2], tokens=2)
    ranks.decode(some[0], tokens=NEW)
    ranks.decode(some[1], some[2], tokens=NEW - 2)
    ranks.decode(some[1], tokens=2)
    assert equal([proc.drawn for proc in some], plain)


def test_preempted_and_brought_back_elsewhere(ranks, plain, generation):
    """All ranks' parts leave and come back: what was left behind is poisoned on all of them."""
    some = procs(ranks)
    ranks.decode(*some, tokens=2)
    pages = [(frame, i, generation) for i, frame in enumerate((6, 7, 12, 13, 14))]
    assert isinstance(ranks.swap_out(*pages), CopyDone)
    ranks.wipe(6, 7, 12, 13, 14)
    back = (25, 24, 30, 20, 31)
    loaded = [(slot, generation, to) for (_, slot, _), to in zip(pages, back, strict=True)]
    assert isinstance(ranks.swap_in(*loaded), CopyDone)
    some[1].move(back[:2])
    some[2].move(back[2:])
    ranks.decode(*some, tokens=NEW - 2)
    assert equal([proc.drawn for proc in some], plain)


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_slot_has_a_part_of_each_rank(ranks, rank, generation):
    """A bit of any of them that changes makes the slot one that is not served."""
    slots = ranks.device._slots
    proc = ranks.proc(words(16, VOCAB), [3])
    ranks.step(proc)
    ranks.swap_out((3, 1, generation), (3, 2, generation))
    part = slots.page_bytes // RANKS
    assert bytes(slots.peek(1)[rank * part :][:part]) == bytes(slots.peek(2)[rank * part :][:part])
    assert slots.peek(1)[rank * part :][:part].any()
    slots.peek(1)[rank * part + 5] ^= 1
    failed = ranks.swap_in((1, generation, 8), (2, generation, 9))
    assert isinstance(failed, CopyFailed) and failed.bad == (0,)
    assert "checksum" in failed.reason


def test_poison_is_everywhere(ranks, generation):
    ranks.wipe(3)
    ranks.swap_out((3, 1, generation))
    words_found = ranks.device._slots.peek(1).view("u4")
    assert set(words_found.tolist()) == {ranks.device._arena.shape.poison}


def test_a_fork_has_pages_of_its_own(ranks, plain):
    some = procs(ranks)
    ranks.decode(*some, tokens=2)
    for source, to in ((12, 25), (13, 26), (14, 27)):
        ranks.copy_frame(source, to)
    ranks.wipe(12, 13, 14)
    some[2].move((25, 26, 27))
    ranks.decode(*some, tokens=NEW - 2)
    assert equal([proc.drawn for proc in some], plain)


def test_through_the_swap_file(ranks, plain, generation, tmp_path):
    """Whole pages on the disk."""
    some = procs(ranks)
    ranks.decode(*some, tokens=2)
    assert ranks.swap_on(tmp_path, 4).blocks == 4
    ranks.swap_out((0, 3, generation))
    ranks.store((3, generation, 2, generation))
    ranks.swap_out((1, 3, generation + 1000))
    ranks.fetch((2, generation, 4, generation))
    ranks.wipe(0)
    assert isinstance(ranks.swap_in((4, generation, 21)), CopyDone)
    ranks.swap_off()
    some[0].move((21,))
    ranks.decode(*some, tokens=NEW - 2)
    assert equal([proc.drawn for proc in some], plain)


def test_a_frame_that_there_is_not_fails_its_copy_alone(ranks, plain):
    failed = ranks.swap_out((99, 1, 7))
    assert isinstance(failed, CopyFailed) and "outside the arena" in failed.reason
    assert equal(drawn(ranks), plain)


def test_a_row_that_cannot_run_fails_alone(ranks, plain):
    """On all ranks alike, or they would not be in step."""
    bad = ranks.proc(words(40, VOCAB), [5])
    good = procs(ranks)
    results = ranks.step(*good, bad)
    assert isinstance(results[-1], RowFault)
    ranks.decode(*good, tokens=NEW - 1)
    assert equal([proc.drawn for proc in good], plain)


PLAIN = [
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=3),
    SamplingParams(temperature=1.5, top_p=0.97, seed=5),
]


def streams(bench):
    return [
        bench.proc(words(7 + 5 * i, VOCAB, i), range(4 * i, 4 * i + 4), params)
        for i, params in enumerate(PLAIN)
    ]


def test_tokens_stay_on_all_devices(ranks, one, gate):
    """The second pass is there before the first has told what it draws."""
    told, ahead, line = streams(one), streams(ranks), Line(ranks)
    one.decode(*told, tokens=2 * NEW)
    gate.shut()
    line.launch(ahead)
    for n in range(2 * NEW - 1):
        line.launch(ahead[:: -1 if n % 2 else 1])
        gate.open()
        line.land()
        gate.shut()
    gate.open()
    line.land()
    assert [proc.drawn for proc in ahead] == [proc.drawn for proc in told]


@pytest.mark.parametrize("asks", [False, True])
def test_ranks_agree_on_rows_of_the_pass_before(ranks, one, gate, asks):
    """Where a row of it cannot run, and where the host must see one before it goes on."""
    drawn = []
    for bench in (one, ranks):
        strange = bench.proc(words(40, VOCAB), range(20, 23) if asks else [20], SAMPLED)
        goes_on, line = streams(bench)[1], Line(bench)
        gate.shut()
        line.launch([strange, goes_on])
        line.launch([goes_on])
        gate.open()
        first, second = line.land(), line.land()
        assert isinstance(first[0], RowFault) is not asks
        drawn.append((first[1], second[0]))
    assert drawn[0] == drawn[1]


@pytest.fixture
def waited(ranks, monkeypatch):
    """Tickets of what the other ranks were waited for."""
    waited, team = [], ranks.device._team
    asking = team.ask

    def ask(command):
        asked = asking(command)
        waiting = asked.wait
        asked.wait = lambda: (waited.append(command.ticket), waiting())
        return asked

    monkeypatch.setattr(team, "ask", ask)
    return waited


def test_a_frame_is_copied_when_it_is_on_all_ranks(ranks, waited):
    """What comes next is behind it there too."""
    ticket = ranks.submit(CopyFrame(ranks.ticket(), 3, 9))
    assert isinstance(ranks.wait(ticket), CopyDone) and waited == [ticket]


def test_pages_have_moved_when_they_have_on_all_ranks(ranks, waited, generation, monkeypatch):
    """Only then is a slot read, and a load told."""
    lanes = ranks.device._lanes
    plain = lanes._checksums
    monkeypatch.setattr(lanes, "_checksums", lambda slots: (waited.append("read"), plain(slots))[1])
    assert isinstance(ranks.swap_out((3, 1, generation)), CopyDone)
    assert waited[:2] == [0, "read"]
    del waited[:]
    assert isinstance(ranks.swap_in((1, generation, 8)), CopyDone)
    assert waited == ["read", 0]


def test_a_pass_has_ended_when_it_has_on_all_ranks(ranks, waited):
    """Until then its frames are nobody else's."""
    proc = streams(ranks)[0]
    for _ in range(2):
        ticket = ranks.start(proc)
        done = ranks.wait(ticket)
        assert waited.pop() == ticket == done.ticket and not waited


def test_matrices_in_8_bits_are_so_on_all_ranks():
    """What is asked for reaches the other one: its sums are near those of one GPU."""
    found, tokens = {}, words(40, VOCAB)
    params = SamplingParams(logprobs=VOCAB)
    options = {"dense": "bf16", "kv_dtype": "bf16"}
    weights = parts.open_weights()
    makes = {
        "two": lambda f, s: parts.device(2, frames=f, host_slots=s, fp8="all", **options),
        "one": lambda f, s: rig.device(
            config=parts.CONFIG, weights=weights, frames=f, host_slots=s, fp8="all", **options
        ),
    }
    for name, make in makes.items():
        fakes.load().reset()
        bench = machine(make)
        assert isinstance(bench.device._layers._weights.layers[0].down, Fp8Matrix)
        (drawn,) = bench.step(bench.proc(tokens, range(4), params))
        bench.close()
        found[name] = dict(drawn.top)
    one, two = found["one"], found["two"]
    assert 0 < sum(np.exp(p) * (p - two[token]) for token, p in one.items()) < 0.05


def test_too_few_gpus_are_counted(ranks):
    config = replace(parts.CONFIG, heads=8, kv_heads=8)
    with pytest.raises(OSError, match=r"tensor_parallel=8 needs 8 GPUs, and there are 4.*fewer"):
        parts.device(8, config)


def test_a_rank_that_cannot_be_built_says_why(ranks):
    with pytest.raises(OSError, match=r"GPU 1 \(pid \d+\) cannot start: no weights here"):
        parts.device(2, open_weights=parts.no_weights)
