"""The callers of a random world who suspend processes and resume them, some days later."""

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from tokenix.kernel.answers import ExitReason, ImageInfo
from tokenix.kernel.calls import (
    CancelCall,
    ImageDir,
    Images,
    Principal,
    Request,
    Resume,
    Suspend,
    UnlinkImage,
)
from tokenix.kernel.event import Reply
from tokenix.mm.ids import Pid
from tokenix.tests.sim.follow import Follower
from tokenix.tests.sim.machine import ROOT

if TYPE_CHECKING:
    from tokenix.tests.sim.callers import Callers

DISK = {errno.EIO, errno.ETIMEDOUT, errno.EINTR, errno.EBUSY}

ERRNOS: dict[type, set[int]] = {
    ImageDir: set(),
    Suspend: {errno.ESRCH, errno.EEXIST, errno.ENOSPC, *DISK},
    Resume: {errno.ENOENT, errno.EAGAIN, errno.E2BIG, *DISK},
    Images: set(),
    UnlinkImage: {errno.ENOENT, *DISK},
}


class Sleepers:
    """Who is in an image, and under which name."""

    def __init__(self, callers: "Callers") -> None:
        self._callers = callers
        self._world = callers.world
        self._asleep: dict[tuple[str, str], Follower] = {}
        self.woken = 0

    def begin(self) -> list[Callable[[], None]]:
        """Open the directory; what may be done then."""
        self._world.send(ImageDir("/"))
        return [*[self.suspend] * 10, *[self.resume] * 5, self.look]

    def suspend(self) -> None:
        callers, chance = self._callers, self._callers.chance
        target = callers.pick()
        if target is None or not self._world.machine.kernel.images.open:
            return
        name = chance.choice(["a", "b", "c"])

        def done(reply: Reply) -> None:
            if reply.error is not None:
                return
            assert isinstance(reply.value, ImageInfo)
            assert target.process.exit_reason is ExitReason.SUSPENDED
            assert (target.tenant, name) not in self._asleep, "an image was written over"
            self._asleep[target.tenant, name] = target
            if chance.random() < 0.7:
                self._world.at(self._world.now_s + chance.random() * 0.5, self.resume)

        who = chance.choice([ROOT, Principal(target.tenant)])
        self._perhaps_cancelled(Suspend(target.pid, name), who, done)

    def resume(self) -> None:
        if not self._asleep or self._callers.healing:
            return
        tenant, name = self._callers.chance.choice(list(self._asleep))

        def done(reply: Reply) -> None:
            if reply.error is not None:
                assert reply.error.errno != errno.ENOENT or (tenant, name) not in self._asleep
                return
            assert isinstance(reply.value, int)
            pid, sleeper = Pid(reply.value), self._asleep.pop((tenant, name))
            self.woken += 1
            self._callers.follow(pid, sleeper.reborn(self._world.process(pid)))

        self._perhaps_cancelled(Resume(name), Principal(tenant), done)

    def look(self) -> None:
        who = self._callers.chance.choice([ROOT, Principal("red")])

        def seen(reply: Reply) -> None:
            assert isinstance(reply.value, tuple)
            assert who.root or all(info.tenant == who.tenant for info in reply.value)

        self._world.send(Images(), who, seen)

    def heal(self) -> None:
        """Who sleeps sleeps on."""
        for tenant, name in self._asleep:
            self._world.send(UnlinkImage(name), Principal(tenant))

    def _perhaps_cancelled(
        self, request: Request, who: Principal, then: Callable[[Reply], None]
    ) -> None:
        world, chance = self._world, self._callers.chance
        call_id = world.send(request, who, then)
        if chance.random() < 0.15:
            later = world.now_s + chance.random() * 0.02
            world.at(later, lambda: world.send(CancelCall(call_id), who) and None)
