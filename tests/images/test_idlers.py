"""When images of idle processes are due: against a list that is searched each time."""

import random

from tokenix.kernel.idlers import SLACK, Idlers
from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid


class Plain:
    """pid -> when it is due, how often it failed."""

    def __init__(self) -> None:
        self.due: dict[Pid, float] = {}
        self.failed: dict[Pid, int] = {}

    def next_s(self) -> float | None:
        return min(self.due.values(), default=None)


def test_who_is_due(seed: int) -> None:
    chance = random.Random(seed)
    idlers = Idlers(Params(image_idle_s=4.0, image_retries=3, image_retry_s=1.0))
    plain, now_s = Plain(), 0.0
    for _ in range(5000):
        pid = Pid(chance.randrange(8))
        match chance.choice(("wait", "drop", "fail", "take", "time")):
            case "wait":
                idlers.note_waiting(pid, now_s)
                plain.due[pid] = now_s + 4.0
                plain.failed.pop(pid, None)
            case "drop":
                idlers.drop(pid)
                plain.due.pop(pid, None)
                plain.failed.pop(pid, None)
            case "fail" if pid not in plain.due:
                idlers.note_failed(pid, now_s)
                times = plain.failed.get(pid, 0)
                if times < 3:
                    plain.failed[pid] = times + 1
                    plain.due[pid] = now_s + 2.0**times
            case "take":
                taken = idlers.take(now_s)
                next_s = plain.next_s()
                assert (taken is None) == (next_s is None or next_s > now_s)
                if taken is not None:
                    assert plain.due.pop(taken) == next_s
            case _:
                now_s += chance.random()
        assert idlers.next_s() == plain.next_s()
        assert len(idlers._queue) <= 2 * len(idlers._due) + SLACK


def test_without_being_asked_nobody_is() -> None:
    idlers = Idlers(Params())
    idlers.note_waiting(Pid(1), 0.0)
    assert idlers.next_s() is None and idlers.take(1e9) is None
