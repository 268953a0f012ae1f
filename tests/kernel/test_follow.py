"""Output that is followed: one call, many parts."""

import errno

import pytest

from tokenix.drivers.sampling import SamplingParams
from tokenix.drivers.sim import expected_tokens
from tokenix.kernel.answers import ExitReason, ReadResult
from tokenix.kernel.calls import CancelCall, Follow, KernelError, Read, Spawn
from tokenix.kernel.event import Reply
from tokenix.mm.ids import Pid
from tokenix.tests.images.lab import Words
from tokenix.tests.sim.machine import SimMachine

PROMPT = tuple(range(8))


class Followed:
    """What a `Follow` has brought."""

    def __init__(self, machine: SimMachine, pid: Pid, max_tokens: int) -> None:
        self.replies: list[Reply] = []
        self.number = machine.start(Follow(pid, max_tokens), then=self.replies.append)

    @property
    def results(self) -> list[ReadResult]:
        return [reply.value for reply in self.replies if isinstance(reply.value, ReadResult)]

    @property
    def tokens(self) -> list[int]:
        return [output.token for result in self.results for output in result.outputs]

    @property
    def over(self) -> bool:
        return bool(self.replies) and not self.replies[-1].more


def begin(max_tokens: int) -> tuple[SimMachine, Pid]:
    machine = SimMachine(64, 0)
    return machine, machine.call(Spawn(PROMPT, max_tokens=max_tokens))


def test_each_token_is_a_part_and_the_last_reply_tells_the_end() -> None:
    machine, pid = begin(6)
    followed = Followed(machine, pid, 100)
    machine.run()
    assert [len(result.outputs) for result in followed.results[:6]] == [1] * 6
    assert [reply.more for reply in followed.replies] == [True] * 6 + [False]
    last = followed.results[-1]
    assert last.eof and last.reason is ExitReason.LENGTH and len(followed.tokens) == 6
    with pytest.raises(KernelError) as caught:
        machine.call(Follow(pid, 1))
    assert caught.value.errno == errno.EPIPE


def test_it_is_over_when_all_is_taken_that_was_asked_for() -> None:
    machine, pid = begin(9)
    first = Followed(machine, pid, 4)
    machine.run()
    assert first.over and len(first.tokens) == 4, "the others wait in the pipe"
    second = Followed(machine, pid, 3)
    assert [len(result.outputs) for result in second.results] == [3] and second.over
    third = Followed(machine, pid, 3)
    assert third.over and third.results[-1].eof and len(third.tokens) == 2


def test_who_follows_and_who_reads_take_turns() -> None:
    machine, pid = begin(6)
    follower = Followed(machine, pid, 100)
    read: list[Reply] = []
    machine.start(Read(pid), then=read.append)
    machine.run()
    assert isinstance(read[0].value, ReadResult) and len(read[0].value.outputs) == 1
    assert len(follower.tokens) == 5 and follower.over


def test_cancelled_it_is_answered_once_more_and_takes_nothing_after_that() -> None:
    machine, pid = begin(6)
    followed = Followed(machine, pid, 100)
    while len(followed.tokens) < 2:
        assert machine.advance()
    assert machine.call(CancelCall(followed.number)) is True
    last = followed.replies[-1]
    assert not last.more and last.error is not None and last.error.errno == errno.EINTR
    machine.run()
    rest = machine.call(Read(pid))
    assert len(followed.tokens) == 2 and len(rest.outputs) == 4
    assert machine.call(CancelCall(followed.number)) is False


@pytest.mark.parametrize("stopping", [False, True])
def test_text_is_the_same_for_who_follows_and_who_reads_at_the_end(stopping: bool) -> None:
    """Where no stop string is looked for, nothing but the text follows from a token."""

    def play(follows: bool) -> tuple[str, ExitReason]:
        machine = SimMachine(64, 0)
        stop = f"w{expected[6]} " if stopping else ""
        pid = machine.call(Spawn(PROMPT, max_tokens=12, text=Words(stop=stop)))
        followed = Followed(machine, pid, 100) if follows else None
        machine.run()
        results = [machine.call(Read(pid))] if followed is None else followed.results
        turn = results[-1].turn_ended
        assert turn is not None
        outputs = [output for result in results for output in result.outputs]
        assert [output.token for output in outputs] == expected[: len(outputs)]
        return "".join(output.text for output in outputs) + turn.tail, turn.reason

    expected = expected_tokens(PROMPT, 12, SamplingParams(), 256, None)
    read, followed = play(False), play(True)
    assert read == followed
    said = 7 if stopping else 12
    assert read[1] is (ExitReason.STOP if stopping else ExitReason.LENGTH)
    assert read[0].split() == [f"w{token}" for token in expected[:said]]


@pytest.mark.parametrize(("pid", "tokens", "number"), [(99, 1, errno.ESRCH), (1, 0, errno.EINVAL)])
def test_what_cannot_be_followed(pid: int, tokens: int, number: int) -> None:
    machine, _ = begin(3)
    with pytest.raises(KernelError) as caught:
        machine.call(Follow(Pid(pid), tokens))
    assert caught.value.errno == number
