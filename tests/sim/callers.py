"""The callers of a random world: who spawns, reads, writes, forks, signals and waits, and when."""

import errno
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from tokenix.drivers.sampling import SamplingParams
from tokenix.kernel.answers import Listing, ReadResult, WaitResult
from tokenix.kernel.calls import (
    CancelCall,
    Follow,
    Fork,
    Kill,
    Nice,
    Principal,
    Ps,
    Read,
    Request,
    SetRlimit,
    ShmOpen,
    ShmUnlink,
    Signal,
    Spawn,
    Stat,
    Swapoff,
    Swapon,
    Sysctl,
    Trace,
    Vmstat,
    Wait,
    Write,
)
from tokenix.kernel.event import Reply
from tokenix.kernel.swapfile import FileState
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Qos, Reader, ReaderKind
from tokenix.sched.policies import POLICIES
from tokenix.tests.sim import sleepers
from tokenix.tests.sim.follow import Follower
from tokenix.tests.sim.machine import ROOT

if TYPE_CHECKING:
    from tokenix.tests.sim.world import World

VOCAB = 256
TENANTS = (Principal("default"), Principal("red"), Principal("blue"))

ERRNOS: dict[type, set[int]] = {
    Spawn: {errno.EINVAL, errno.E2BIG, errno.EAGAIN, errno.EDQUOT},
    Read: {errno.ESRCH, errno.EPIPE, errno.EINVAL, errno.EINTR, errno.EAGAIN},
    Follow: {errno.ESRCH, errno.EPIPE, errno.EINVAL, errno.EINTR, errno.EAGAIN},
    Write: {errno.ESRCH, errno.EPIPE, errno.E2BIG, errno.EINVAL, errno.EBUSY},
    Fork: {errno.ESRCH, errno.EAGAIN, errno.EINVAL, errno.EBUSY, errno.E2BIG, errno.EDQUOT},
    Wait: {errno.ECHILD, errno.EINTR, errno.EAGAIN},
    Kill: {errno.ESRCH},
    Nice: {errno.ESRCH, errno.EPERM, errno.EINVAL, errno.EBUSY},
    SetRlimit: {errno.ESRCH, errno.EINVAL, errno.E2BIG, errno.EBUSY},
    ShmOpen: {errno.EDQUOT, errno.EEXIST, errno.EINVAL, errno.E2BIG, errno.EAGAIN, errno.EIO},
    ShmUnlink: {errno.ENOENT},
    Stat: {errno.ESRCH},
    Ps: set(),
    Vmstat: set(),
    Sysctl: {errno.EPERM},
    Swapon: {errno.EPERM, errno.EBUSY, errno.EINVAL},
    Swapoff: {errno.EPERM, errno.EINVAL, errno.EBUSY, errno.EIO},
    Trace: {errno.EPERM, errno.ESRCH},
    CancelCall: set(),
    **sleepers.ERRNOS,
}
"""What a call may fail with; anything else is a fault."""

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(),
    SamplingParams(temperature=0.8, top_k=20, seed=7),
    SamplingParams(temperature=1.0, top_p=0.9, seed=11, repetition_penalty=1.2),
    SamplingParams(presence_penalty=0.5, frequency_penalty=0.3),
    SamplingParams(logprobs=2),
)

READERS = (
    Reader(),
    Reader(tokens_per_s=40.0),
    Reader(ReaderKind.MEASURED),
    Reader(ReaderKind.BATCH),
    Reader(ReaderKind.HIDDEN),
)


class Callers:
    """Everybody outside of the kernel."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.chance: random.Random = world.chance
        self.followers: dict[Pid, Follower] = {}
        self.blocked: dict[int, Pid] = {}
        """Reads without a reply: call id -> pid."""
        self.swaps: set[int] = set()
        """Swapons and swapoffs without a reply."""
        self.healing = False
        self.sleepers = sleepers.Sleepers(self)
        page = world.spec.page_tokens
        self._shared = [self._draw(page * self.chance.randint(1, 4)) for _ in range(2)]
        self._segments: list[tuple[Principal, str]] = []

    def _draw(self, count: int) -> tuple[int, ...]:
        return tuple(self.chance.randrange(VOCAB) for _ in range(count))

    # ---- the plot ----

    def begin(self, horizon_s: float) -> None:
        """Choose who does what at which moment."""
        chance = self.chance
        for _ in range(chance.randint(2, 8)):
            self.world.at(chance.random() * horizon_s * 0.7, self.spawn)
        acts: list[Callable[[], None]] = [
            self.signal, self.signal, self.fork, self.write, self.write, self.nice, self.limit,
            self.segment, self.unlink, self.wait, self.intrude, self.cancel, self.look,
            self.policy, self.read_twice, self.wild,
        ]  # fmt: skip
        if self.world.spec.file_blocks:
            self.world.at(0.0, self.swap_file)
            acts.append(self.swap_file)
        if self.world.spec.images:
            acts += self.sleepers.begin()
        chosen = [act for act in acts if chance.random() < 0.6]
        for _ in range(chance.randint(0, 25) if chosen else 0):
            self.world.at(chance.random() * horizon_s, chance.choice(chosen))

    def heal(self) -> None:
        """Let everything end: continue the stopped, read the unread, close what is open."""
        self.healing = True
        for pid in list(self.followers):
            self._let_end(pid)
        for who, name in self._segments:
            self.world.send(ShmUnlink(name), who)
        self.sleepers.heal()

    def _let_end(self, pid: Pid) -> None:
        self.world.send(Kill(pid, Signal.CONT))
        if self.followers[pid].keep_open:
            self._close(pid)
        self.read_on(pid)

    def _close(self, pid: Pid) -> None:
        def closed(reply: Reply) -> None:
            if reply.error is not None and reply.error.errno == errno.EBUSY:  # it is being saved
                self.world.at(self.world.now_s + 0.1, lambda: self._close(pid))

        self.world.send(Write(pid, eof=True), then=closed)

    def observe(self) -> None:
        for follower in self.followers.values():
            if follower.keep_open or follower.written:
                follower.observe()

    def check_reply(self, request: Request, who: Principal, reply: Reply) -> None:
        if reply.error is not None:
            assert reply.error.errno in ERRNOS[type(request)], f"{request}: {reply.error}"
            assert reply.error.message, "an error says what was wrong"

    def reap(self) -> bool:
        """Wait for whoever has ended and was not waited for; False if there is nobody."""
        left = [f for f in self.followers.values() if not f.reaped]
        for follower in left:
            self.world.send(Wait(follower.pid, block=False), then=self._reaper(follower))
        return bool(left)

    def _reaper(self, follower: Follower) -> Callable[[Reply], None]:
        def reaped(reply: Reply) -> None:
            if reply.error is not None and reply.error.errno == errno.ECHILD:
                follower.reaped = True
            self._waited(reply)

        return reaped

    def check_over(self) -> None:
        for follower in self.followers.values():
            follower.check_over()
        assert not self.blocked, "reads are blocked for ever"

    def pick(self) -> Follower | None:
        """Somebody, mostly living."""
        living = [f for f in self.followers.values() if f.process.exit_reason is None]
        pool = living if living and self.chance.random() < 0.9 else list(self.followers.values())
        return self.chance.choice(pool) if pool else None

    # ---- life ----

    def spawn(self) -> None:
        chance, spec = self.chance, self.world.spec
        room = spec.frames * spec.page_tokens
        prompt = self._draw(chance.randint(1, max(1, int(room * chance.choice([0.2, 0.5, 0.9])))))
        if chance.random() < 0.5:
            shared = chance.choice(self._shared)
            prompt = (shared + prompt)[: max(1, room - 2)]
        left = max(1, room - spec.page_tokens - len(prompt))
        max_tokens = chance.randint(1, min(60, max(1, left)))
        request = Spawn(
            prompt,
            sampling=chance.choice(SAMPLINGS),
            max_tokens=chance.choice([max_tokens, max_tokens, max_tokens, None]),
            min_tokens=chance.choice([0, 0, 3]),
            ignore_eos=False,
            max_pages=chance.choice([None, None, None, 1 + len(prompt) // spec.page_tokens]),
            deadline_s=chance.choice([None, None, None, chance.random() * 2 + 1e-3]),
            qos=chance.choice(list(Qos)),
            reader=chance.choice(READERS),
            nice=chance.choice([0, 0, 5, 19]),
            keep_open=chance.random() < 0.3,
        )
        self.world.send(request, chance.choice(TENANTS), self._spawned)

    def _spawned(self, reply: Reply) -> None:
        if reply.error is None:
            assert isinstance(reply.value, int)
            self.follow(Pid(reply.value))

    def follow(self, pid: Pid, follower: Follower | None = None) -> None:
        """Watch a process, and read it in some way."""
        if follower is None:
            follower = Follower(self.world.process(pid), VOCAB, self.world.spec.eos_token)
        self.followers[pid] = follower
        if self.healing:
            self._let_end(pid)
            return
        kind = self.chance.choice(["fast", "fast", "slow", "late"])
        if kind == "fast":
            self.read_on(pid)
        elif kind == "slow":
            self._read_slowly(pid, self.chance.choice([1, 1, 3]), self.chance.choice([0.01, 0.2]))

    def fork(self) -> None:
        parent = self.pick()
        if parent is None:
            return
        n = self.chance.choice([1, 1, 2, 3])
        seeds = tuple(range(100, 100 + n)) if self.chance.random() < 0.3 else ()

        def forked(reply: Reply) -> None:
            if reply.error is not None:
                return
            assert isinstance(reply.value, tuple) and len(reply.value) == n
            for pid in reply.value:
                self.follow(pid)

        self.world.send(Fork(parent.pid, n, seeds, afresh=n == 3), then=forked)

    def signal(self) -> None:
        target = self.pick()
        if target is None:
            return
        signal = self.chance.choice(
            [Signal.STOP, Signal.STOP, Signal.CONT, Signal.CONT, Signal.TERM, Signal.KILL]
        )
        for _ in range(self.chance.choice([1, 1, 1, 2])):
            self.world.send(Kill(target.pid, signal))

    def wait(self) -> None:
        target = self.pick()
        if target is None:
            return
        pid = self.chance.choice([None, target.pid])
        block = self.chance.random() < 0.7
        call_id = self.world.send(Wait(pid, block), then=self._waited)
        if block and self.chance.random() < 0.3:
            later = self.world.now_s + self.chance.random() * 0.1
            self.world.at(later, lambda: self._cancel(call_id))

    def _waited(self, reply: Reply) -> None:
        if reply.error is not None:
            return
        result = reply.value
        assert isinstance(result, WaitResult)
        follower = self.followers[result.pid]
        assert not follower.reaped or follower.told is result, "a process is reaped once"
        follower.reaped, follower.told = True, result
        usage = result.rusage
        assert usage.output_tokens >= sum(len(turn.outputs) for turn in follower.turns)
        assert result.reason is follower.process.exit_reason
        assert usage.total_s >= 0 and usage.paused_s >= 0 and usage.queue_s >= 0
        assert usage.paused_s <= usage.total_s + 1e-9
        assert usage.total_s == 0 or usage.page_seconds <= usage.total_s * self.world.spec.frames

    # ---- output ----

    def read_on(self, pid: Pid) -> None:
        """Read all there is and all that comes."""
        take = self.chance.choice([1, 3, 1 << 30])

        def got(reply: Reply) -> None:
            if self._got(pid, call_id, reply):
                self.world.at(self.world.now_s, lambda: self.read_on(pid))

        call_id = self.world.send((Follow if pid % 2 else Read)(pid, take), then=got)
        self.blocked[call_id] = pid

    def _read_slowly(self, pid: Pid, take: int, every_s: float) -> None:
        if self.healing:
            return

        def got(reply: Reply) -> None:
            if self._got(pid, call_id, reply):
                later = self.world.now_s + every_s
                self.world.at(later, lambda: self._read_slowly(pid, take, every_s))

        block = self.chance.random() < 0.5
        call_id = self.world.send(Read(pid, take, block), then=got)
        self.blocked[call_id] = pid

    def _got(self, pid: Pid, call_id: int, reply: Reply) -> bool:
        """Take the answer of a read, or a part of it; True if more is to be asked for."""
        if not reply.more:
            del self.blocked[call_id]
        follower = self.followers[pid]
        if reply.error is not None:
            if reply.error.errno == errno.ESRCH:
                follower.unreadable = follower.reaped = True
            return False
        assert isinstance(reply.value, ReadResult)
        follower.take(reply.value)
        if not reply.value.eof:
            return not reply.more
        if self.healing or self.chance.random() < 0.5:
            self.world.send(Wait(pid, block=False), then=self._waited)
        return False

    def read_twice(self) -> None:
        target = self.pick()
        if target is not None:
            self.read_on(target.pid)

    def cancel(self) -> None:
        if self.blocked:
            self._cancel(self.chance.choice(list(self.blocked)))

    def _cancel(self, call_id: int) -> None:
        self.world.send(CancelCall(call_id), self.chance.choice([ROOT, ROOT, *TENANTS]))

    # ---- input and limits ----

    def write(self) -> None:
        open_ones = [f for f in self.followers.values() if f.keep_open]
        target = self.chance.choice(open_ones) if open_ones else self.pick()
        if target is None:
            return
        tokens = self._draw(self.chance.choice([0, 1, 2, 5]))

        def written(reply: Reply) -> None:
            if reply.error is None:
                target.written.extend(tokens)

        eof = self.chance.random() < 0.3
        self.world.send(Write(target.pid, tokens, eof=eof), then=written)

    def nice(self) -> None:
        target = self.pick()
        if target is not None:
            self.world.send(Nice(target.pid, self.chance.randint(-20, 19)))

    def limit(self) -> None:
        target = self.pick()
        if target is None:
            return
        chance = self.chance
        request = SetRlimit(
            target.pid,
            max_tokens=chance.choice([None, chance.randint(1, 60)]),
            max_pages=chance.choice([None, None, chance.randint(1, 6)]),
            deadline_s=chance.choice([None, None, chance.random() * 3 + 1e-3]),
        )

        def done(reply: Reply) -> None:
            if reply.error is None and request.max_tokens is not None:
                target.bounds.add(request.max_tokens)

        self.world.send(request, then=done)

    # ---- the rest of the table ----

    def segment(self) -> None:
        name = self.chance.choice(["system", "manual"])
        who = self.chance.choice(TENANTS)
        self._segments.append((who, name))
        self.world.send(ShmOpen(name, self.chance.choice(self._shared)), who)

    def unlink(self) -> None:
        if self._segments:
            who, name = self.chance.choice(self._segments)
            self.world.send(ShmUnlink(name), who)

    def intrude(self) -> None:
        """A tenant names a process of another tenant: it does not exist."""
        target = self.pick()
        if target is None:
            return
        strangers = [who for who in TENANTS if who.tenant != target.tenant]
        requests: list[tuple[Request, int]] = [
            (Kill(target.pid, Signal.KILL), errno.ESRCH),
            (Read(target.pid), errno.ESRCH),
            (Write(target.pid, (1,)), errno.ESRCH),
            (Fork(target.pid), errno.ESRCH),
            (Stat(target.pid), errno.ESRCH),
            (Nice(target.pid, 3), errno.ESRCH),
            (SetRlimit(target.pid, max_tokens=1), errno.ESRCH),
            (Wait(target.pid), errno.ECHILD),
            (Trace(target.pid), errno.ESRCH),
        ]
        request, number = self.chance.choice(requests)

        def refused(reply: Reply) -> None:
            assert reply.error is not None and reply.error.errno == number, f"{request} answered"

        self.world.send(request, self.chance.choice(strangers), refused)

    def look(self) -> None:
        who = self.chance.choice([ROOT, *TENANTS])

        def seen(reply: Reply) -> None:
            assert isinstance(reply.value, Listing)
            tenants = {stat.tenant for stat in reply.value.processes}
            assert who.root or tenants <= {who.tenant}

        self.world.send(Ps(), who, seen)
        self.world.send(Vmstat(), who)
        self.world.send(Sysctl(), who)
        self.world.send(Trace(since=0, limit=10), who)

    def policy(self) -> None:
        name = self.chance.choice(list(POLICIES))
        self.world.send(Sysctl("policy", name), self.chance.choice([ROOT, TENANTS[1]]))

    def swap_file(self) -> None:
        """It comes, or goes, whatever is in it."""
        blocks = self.world.spec.file_blocks
        file = self.world.machine.kernel.swapfile.state
        who = self.chance.choice([ROOT, ROOT, ROOT, TENANTS[1]])
        on = file is FileState.OFF or (file is not FileState.ON and self.chance.random() < 0.5)
        size_bytes = blocks * self.world.machine.kernel.info.frame_bytes
        request = Swapon("/", size_bytes) if on else Swapoff()
        call_id = self.world.send(request, who, lambda _: self.swaps.discard(call_id))
        self.swaps.add(call_id)

    def wild(self) -> None:
        """Pids that never were."""
        pid = Pid(10_000)
        for request in (Kill(pid, Signal.KILL), Read(pid), Fork(pid), Wait(pid), Stat(pid)):
            self.world.send(request)
