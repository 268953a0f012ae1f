"""A grammar's mask comes before all else that shapes a draw."""

from dataclasses import replace

from tokenix.drivers.ops import RowFault, Sampled, SamplingParams
from tokenix.tests.device.machine import Machine, words
from tokenix.tests.device.test_sampling import NEW, WARM, draw, tokens
from tokenix.tests.wheel import Wheel, pack


class Only:
    """These and no others, always."""

    def __init__(self, *allowed: int) -> None:
        self._mask = pack(allowed, max(allowed, default=0) + 1)

    def mask(self, history: object, start: int, end: int) -> bytes:
        return self._mask


class Speechless:
    def mask(self, history: object, start: int, end: int) -> bytes:
        raise ValueError("its grammar is too much")


def test_output_keeps_to_it(machine: Machine) -> None:
    """In any batch, and the same when it is drawn again behind one prefill."""
    vocab = machine.harness.vocab
    for at, params in enumerate((SamplingParams(), WARM)):
        lone = machine.proc(words(7, vocab), range(6), params)
        lone.grammar = Wheel(vocab, 5, 1000)
        machine.decode(lone, tokens=NEW)
        batched = machine.proc(words(7, vocab), range(6, 12), params)
        batched.grammar = Wheel(vocab, 5, 1000)
        free = machine.proc(words(7, vocab), range(12, 18), params)
        machine.decode(free, batched, tokens=NEW)
        assert tokens(batched) == tokens(lone) != tokens(free), at
        for i, token in enumerate(tokens(lone)):
            told = sum(t + 1 for t in tokens(lone)[:i])
            assert (told + token) % 5 == 0
            again = machine.proc(lone.tokens[: 7 + i], range(18, 24), params)
            again.prompt, again.grammar = 7, Wheel(vocab, 5, 1000)
            assert draw(machine, again) == token


def test_it_is_stronger_than_a_bias_and_than_bans(machine: Machine) -> None:
    proc = machine.proc(words(6, machine.harness.vocab), range(6))
    proc.grammar = Only(17, 42)
    forced = replace(proc, params=SamplingParams(logit_bias=((99, 100.0), (42, 100.0))))
    assert draw(machine, forced) == 42
    assert draw(machine, replace(proc, banned=(42,))) == 17
    assert draw(machine, replace(proc, banned=(17, 42))) in (17, 42)
    assert draw(machine, replace(proc, banned=(17,), params=WARM)) == 42


def test_log_probabilities_are_those_of_the_model(machine: Machine) -> None:
    params = SamplingParams(logprobs=0)
    proc = machine.proc(words(6, machine.harness.vocab), range(6), params)
    favourite = draw(machine, proc)
    (free,) = machine.step(replace(proc, pid=machine.pid(), drawn=[], tokens=[*proc.tokens]))
    held = replace(proc, pid=machine.pid(), drawn=[], tokens=[*proc.tokens], known=0)
    held.grammar = Only(favourite)
    (result,) = machine.step(held)
    assert isinstance(result, Sampled) and result == free


def test_what_it_cannot_allow_fails_the_row_alone(machine: Machine) -> None:
    vocab = machine.harness.vocab
    fine = machine.proc(words(6, vocab), range(6))
    for at, (grammar, told) in enumerate(
        [(Only(), "its grammar leaves none"), (Speechless(), "its grammar is too much")]
    ):
        stuck = machine.proc(words(6, vocab), range(6 + 6 * at, 12 + 6 * at))
        stuck.grammar = grammar
        broken, result = machine.step(stuck, fine)
        assert isinstance(broken, RowFault) and told in broken.reason
        assert isinstance(result, Sampled)
