"""A draw is a function of the model's distribution, the parameters, the seed and the position."""

from dataclasses import replace

from tokenix.drivers.ops import ForwardDone, Sampled, SamplingParams
from tokenix.tests.device.machine import Harness, Machine, Proc, words

WARM = SamplingParams(temperature=1.0, top_p=0.95, seed=11)
NEW = 8


def tokens(proc: Proc) -> list[int]:
    return [sampled.token for sampled in proc.drawn]


def draw(machine: Machine, proc: Proc) -> int:
    """The next token of a process that is not changed by it."""
    again = replace(proc, pid=machine.pid(), tokens=[*proc.tokens], drawn=[], known=0)
    (result,) = machine.step(again)
    assert isinstance(result, Sampled)
    return result.token


def test_a_seed_gives_the_same_stream_in_any_batch(machine: Machine) -> None:
    prompt = words(7, machine.harness.vocab)
    lone = machine.proc(prompt, range(6), WARM)
    machine.decode(lone, tokens=NEW)
    first = machine.proc(words(3, machine.harness.vocab, 1), range(6, 12), replace(WARM, seed=5))
    machine.decode(first, tokens=2)
    batched = machine.proc(prompt, range(12, 18), WARM)
    machine.decode(first, batched, tokens=NEW // 2)
    third = machine.proc(words(5, machine.harness.vocab, 2), range(18, 24))
    machine.decode(third, batched, first, tokens=NEW // 2)
    assert tokens(batched) == tokens(lone)


def test_a_draw_again_at_the_same_position_is_the_same(machine: Machine) -> None:
    """Recompute after preemption: the prefix runs as one prefill and draws what it drew before."""
    proc = machine.proc(words(5, machine.harness.vocab), range(6), WARM)
    machine.decode(proc, tokens=NEW)
    for i in range(NEW):
        again = machine.proc(proc.tokens[: 5 + i], range(8, 14), WARM)
        assert draw(machine, again) == proc.drawn[i].token


def test_another_seed_gives_another_stream(machine: Machine) -> None:
    prompt = words(7, machine.harness.vocab)
    procs = [machine.proc(prompt, range(6 * i, 6 * i + 6), replace(WARM, seed=i)) for i in range(4)]
    machine.decode(*procs, tokens=NEW)
    assert len({tuple(tokens(proc)) for proc in procs}) == 4


def test_positions_have_different_chances(machine: Machine) -> None:
    """The distribution is nearly uniform: one seed must not repeat one choice for ever."""
    hot = SamplingParams(temperature=50.0, seed=3)
    proc = machine.proc(words(4, machine.harness.vocab), range(6), hot)
    machine.decode(proc, tokens=NEW)
    assert len(set(tokens(proc))) > NEW // 2


def test_penalties_read_prompt_and_output(machine: Machine) -> None:
    """The favourite is put into the history, once as prompt and once as output."""
    proc = machine.proc(words(9, machine.harness.vocab), range(6))
    favourite = draw(machine, proc)
    history = [t if i != 3 else favourite for i, t in enumerate(proc.tokens)]
    presence = replace(proc, params=SamplingParams(presence_penalty=1000.0), history=history)
    as_output = draw(machine, replace(presence, prompt=3))
    as_prompt = draw(machine, replace(presence, prompt=4))
    assert as_output != favourite
    assert as_output != as_prompt
    frequency = replace(presence, params=SamplingParams(frequency_penalty=1000.0))
    assert draw(machine, replace(frequency, prompt=3)) != favourite
    repetition = replace(presence, params=SamplingParams(repetition_penalty=1000.0))
    assert draw(machine, replace(repetition, prompt=9)) != favourite


def test_history_beyond_the_position_is_not_read(machine: Machine) -> None:
    """The kernel's list grows while the device runs."""
    params = SamplingParams(repetition_penalty=1.5, frequency_penalty=0.5)
    proc = machine.proc(words(9, machine.harness.vocab), range(6), params)
    clean = draw(machine, proc)
    longer = replace(proc, pid=machine.pid(), tokens=[*proc.tokens])
    ticket = machine.start(longer)
    longer.tokens.extend([clean] * 5)
    done = machine.wait(ticket)
    assert isinstance(done, ForwardDone)
    (result,) = done.results
    assert isinstance(result, Sampled)
    assert result.token == clean


def test_banned_tokens_are_not_drawn(machine: Machine) -> None:
    for params in (SamplingParams(), WARM):
        proc = machine.proc(words(6, machine.harness.vocab), range(6), params)
        seen: list[int] = []
        for _ in range(5):
            seen.append(draw(machine, replace(proc, banned=tuple(seen))))
        assert len(set(seen)) == 5


def test_the_only_token_left_is_drawn(machine: Machine) -> None:
    vocab = machine.harness.vocab
    proc = machine.proc(words(6, vocab), range(6), WARM)
    proc.banned = tuple(t for t in range(vocab) if t != 42)
    assert draw(machine, proc) == 42


def test_a_bias_forces_or_forbids(machine: Machine) -> None:
    proc = machine.proc(words(6, machine.harness.vocab), range(6))
    favourite = draw(machine, proc)
    proc.params = SamplingParams(logit_bias=((17, 100.0),))
    assert draw(machine, proc) == 17
    proc.params = SamplingParams(logit_bias=((favourite, -100.0),))
    assert draw(machine, proc) != favourite
    others = (t for t in range(machine.harness.vocab) if t != 42)
    proc.params = SamplingParams(logit_bias=tuple((t, -100.0) for t in others))
    assert draw(machine, proc) == 42


def test_log_probabilities_come_as_asked(machine: Machine) -> None:
    for count in (-1, 0, 1, 5):
        proc = machine.proc(
            words(6, machine.harness.vocab), range(6), SamplingParams(logprobs=count)
        )
        (result,) = machine.step(proc)
        assert isinstance(result, Sampled)
        assert len(result.top) == max(0, count)
        if count >= 0:
            assert result.logprob < 0
        if count > 0:
            assert result.top[0][0] == result.token
            assert abs(result.top[0][1] - result.logprob) < 1e-6
            assert [p for _, p in result.top] == sorted((p for _, p in result.top), reverse=True)
            assert len({t for t, _ in result.top}) == count


def test_log_probabilities_do_not_change_the_draw(harness: Harness) -> None:
    streams = []
    for count in (-1, 3):
        machine = Machine(harness)
        proc = machine.proc(words(6, harness.vocab), range(6), replace(WARM, logprobs=count))
        machine.decode(proc, tokens=NEW)
        streams.append(tokens(proc))
        machine.close()
    assert streams[0] == streams[1]
