"""The processes of the other ranks, seen from the kernel's: started, asked, watched, ended.

    ask      a message to each, an answer from each     whoever asked waits
    watch    one thread: answers; an end; a silence of more than `patience_s`

When one of them ends, fails in a pass, or is silent for too long, the device is lost: the others
are in the middle of a pass that nobody will finish. All are killed, whoever waits is told why, and
so is who asks later. Nothing waits for ever.
"""

import contextlib
import errno
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from tokenix.drivers.cuda.ranks.messages import (
    Answer,
    Failed,
    Join,
    Loaded,
    Loading,
    Request,
    encode,
    read_report,
    request_of,
)
from tokenix.drivers.cuda.ranks.spec import MemberSpec
from tokenix.drivers.ops import Command, Forward, Poison
from tokenix.mm.ids import Ticket

PROGRAM = "tokenix.drivers.cuda.ranks.process"

START_S = 300.0
"""Without a sign of life from a process that loads weights."""

LOOK_S = 0.25
"""Between two looks at the time."""

BLAME_S = 2.0
"""Until a rank that has ended is noticed, at most: it is then what made a pass fail here."""

END_S = 5.0
"""From the end of a process's connection to that of the process."""


class RanksLost(RuntimeError):
    """Another rank is gone; so is the device. `errno`: of what it failed with."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(f"{reason}; the GPUs are lost to this process: restart it")
        self.errno = code


class Asked:
    """What was asked of all other ranks."""

    def __init__(self, ranks: set[int], deadline_s: float, ends_all: bool) -> None:
        self.left = ranks
        """Who has not answered."""
        self.deadline_s = deadline_s
        self.ends_all = ends_all
        """Whether they cannot go on if one fails."""
        self.wrong: Exception | None = None
        self._done = threading.Event()

    def finish(self) -> None:
        self._done.set()

    def settle(self) -> None:
        """Wait until all have answered, or will not."""
        self._done.wait()

    def wait(self) -> None:
        """`settle`; RuntimeError if one could not do it, RanksLost if one is gone."""
        self.settle()
        if self.wrong is not None:
            raise self.wrong


@dataclass(slots=True)
class _Member:
    """A process. The watching thread reads; who asks writes, under the team's lock."""

    rank: int
    process: subprocess.Popen[bytes]
    connection: Connection
    loaded: bool = False
    heard_s: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return f"the process of GPU {self.rank} (pid {self.process.pid})"


class Team:
    """All ranks but the first. Any thread may ask; each rank gets commands in the order in which
    they were asked."""

    def __init__(
        self,
        specs: Sequence[MemberSpec],
        fds: Sequence[int],
        patience_s: float,
        program: str = PROGRAM,
    ) -> None:
        """fds: descriptors that the specs name. program: a module; another one for tests."""
        self._patience_s = patience_s
        self._sending = threading.Lock()
        """Held while messages are written, which may take until their reader is killed."""
        self._lock = threading.Condition()
        """Of all below."""
        self._asked: dict[Ticket, Asked] = {}
        self._tickets = 0
        self._abort: Callable[[], None] | None = None
        self._complaint: tuple[str, int] | None = None
        self._lost: RanksLost | None = None
        self._members = [_start(program, spec, fds) for spec in specs]
        self._bell, self._ringer = Pipe(duplex=False)
        self._thread = threading.Thread(target=self._watch, name="tokenix-ranks", daemon=True)
        self._thread.start()

    @property
    def pids(self) -> list[int]:
        """Of their processes, by rank from 1."""
        return [member.process.pid for member in self._members]

    def meet(self) -> None:
        """Wait until all have loaded, and let them meet. RanksLost."""
        with self._lock:
            self._lock.wait_for(
                lambda: self._lost or all(member.loaded for member in self._members)
            )
        with self._sending:
            self._send(Join())

    def guard(self, abort: Callable[[], None]) -> None:
        """What to call when the device is lost: passes that are under way will not end."""
        with self._lock:
            self._abort = abort
            if self._lost is None:
                return
        abort()

    def ask(self, command: Command) -> Asked:
        """Give all a command. RanksLost."""
        with self._sending:
            with self._lock:
                self._tickets += 1
                ticket = Ticket(self._tickets)
                asked = self._asked[ticket] = Asked(
                    {member.rank for member in self._members},
                    time.monotonic() + self._patience_s,
                    ends_all=isinstance(command, Forward),
                )
            self._send(request_of(command, ticket))
        return asked

    def tell(self, command: Poison) -> None:
        """Give all a command that is not answered. RanksLost."""
        with self._sending:
            self._send(request_of(command, Ticket(0)))

    def _send(self, request: Request) -> None:
        data = encode(request)
        for member in self._members:
            if self._lost is not None:
                raise self._lost
            with contextlib.suppress(OSError):  # its end, which the watching thread will see
                member.connection.send_bytes(data)

    def lose(self, error: Exception) -> RanksLost:
        """A pass has failed here, so the others wait in vain: why that was."""
        with self._lock:
            self._lock.wait_for(lambda: self._lost, timeout=BLAME_S)
        self._end(f"a pass has failed on GPU 0 ({type(error).__name__}: {error})", errno.EIO)
        assert self._lost is not None, "the watching thread has ended"
        return self._lost

    def close(self) -> None:
        """End all processes. Idempotent."""
        self._end("the device is closed", errno.EIO)
        self._bell.close()
        self._ringer.close()

    def _end(self, reason: str, code: int) -> None:
        """Let the watching thread end all, if it has not."""
        with self._lock:
            self._complaint = self._complaint or (reason, code)
            if not self._ringer.closed:
                self._ringer.send_bytes(b"")
        self._thread.join()

    # ---- the watching thread ----

    def _watch(self) -> None:
        living = {member.connection: member for member in self._members}
        end = None
        while end is None:
            ready = wait([self._bell, *living], LOOK_S)
            if self._complaint is not None:
                end = self._complaint
            elif not ready:
                end = self._find_late(time.monotonic())
            for connection in ready:
                if connection is not self._bell:
                    assert isinstance(connection, Connection)
                    end = end or self._hear(living[connection])
        self._end_all(RanksLost(*end))

    def _hear(self, member: _Member) -> tuple[str, int] | None:
        """What a process says. Not None: why that is the end."""
        try:
            report = read_report(member.connection.recv_bytes())
        except (EOFError, OSError):
            return f"{member} {_end_of(member.process)}", errno.EIO
        with self._lock:
            member.heard_s = time.monotonic()
            match report:
                case Failed():
                    return f"{member} cannot start: {report.reason}", report.errno
                case Loaded():
                    member.loaded = True
                    self._lock.notify_all()
                case Loading():
                    pass
                case Answer():
                    return self._take(member, report)
        return None

    def _take(self, member: _Member, answer: Answer) -> tuple[str, int] | None:
        asked = self._asked[answer.ticket]
        asked.left.discard(member.rank)
        if answer.wrong and asked.ends_all:
            return f"a pass has failed on GPU {member.rank} ({answer.wrong})", errno.EIO
        if answer.wrong:
            asked.wrong = RuntimeError(f"on GPU {member.rank}: {answer.wrong}")
        if not asked.left:
            del self._asked[answer.ticket]
            asked.finish()
        return None

    def _find_late(self, now_s: float) -> tuple[str, int] | None:
        late = None
        with self._lock:
            for asked in self._asked.values():
                if now_s > asked.deadline_s:
                    late = min(asked.left), self._patience_s
            for member in self._members:
                if not member.loaded and now_s > member.heard_s + START_S:
                    late = member.rank, START_S
        if late is None:
            return None
        member, silent_s = self._members[late[0] - 1], late[1]
        return f"{member} has not answered for {silent_s:g} s", errno.ETIMEDOUT

    def _end_all(self, lost: RanksLost) -> None:
        for member in self._members:
            member.process.kill()
        with self._lock:
            self._lost = lost
            for asked in self._asked.values():
                asked.wrong = lost
                asked.finish()
            self._asked.clear()
            self._lock.notify_all()
            abort = self._abort
        if abort is not None:
            with contextlib.suppress(RuntimeError):  # of a group that is gone already
                abort()
        for member in self._members:
            member.process.wait()
        with self._sending:
            for member in self._members:
                member.connection.close()


def _start(program: str, spec: MemberSpec, fds: Sequence[int]) -> _Member:
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", program, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno(), *fds],
            start_new_session=True,  # Ctrl-C on a terminal is for us
        )
    ours.send_bytes(pickle.dumps(spec))
    return _Member(spec.index, process, ours)


def _end_of(process: subprocess.Popen[bytes]) -> str:
    """How it ended; its connection has, so it is about to."""
    try:
        code = process.wait(END_S)
    except subprocess.TimeoutExpired:
        return "has closed its connection"
    return f"was ended by signal {-code}" if code < 0 else f"has ended (exit {code})"
