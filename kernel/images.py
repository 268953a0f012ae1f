"""Images of processes: which files there are, and what is under way with them.

    suspend   process --(leaves the device)--> pending --SaveImage--> file; the process is gone
    idle      process that waits for input --SaveImage--> file; the process stays
    resume    file --ReadImage--> its meta --LoadImage--> pages in host slots --> process

    saved/TENANT/NAME.img    made by `suspend`: stay until they are resumed or unlinked
    idle/NUMBER.img          of idle processes: go when those run on or end
    what else lies there     is left alone, and told of once (`image-strays`)

This is the books, which `lifecycle` tells what happens to processes. What is done about them is
`kernel/imaging.py`'s. All IO is commands of the device, one answer each, each with a deadline.
"""

import errno
import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote, unquote

from tokenix.drivers.imagefile import file_bytes
from tokenix.drivers.ops import Command, OpenImages, UnlinkImage
from tokenix.kernel.answers import ExitReason, ImageInfo, Output, TurnEnd
from tokenix.kernel.calls import Grammar, KernelError, Principal, TextStream, error
from tokenix.kernel.idlers import Idlers
from tokenix.kernel.imagepages import Arriving
from tokenix.kernel.params import Params
from tokenix.kernel.process import Process
from tokenix.mm.ids import Pid, Slot, Ticket

MAX_NAME_BYTES = 200
"""Of a tenant's and an image's name as they are in the file system."""

NOBODY = Principal("")

UNSENT = Ticket(0)
"""Of a job that `Images.start` has not started yet."""

SAVED, IDLE, SUFFIX = "saved/", "idle/", ".img"
_IDLE_PATH = re.compile(r"idle/([1-9][0-9]{0,17})\.img")


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A command whose answer has not come."""

    ticket: Ticket
    path: str
    deadline_s: float
    size_bytes: int = 0
    call_id: int | None = None
    """Who waits for it; None: nobody, or not any more."""
    who: Principal = NOBODY
    given_up: bool = False
    """Its deadline passed, or it is not wanted any more: its end only gives back what it keeps."""


@dataclass(slots=True, kw_only=True, eq=False)
class Opening(Job):
    directory: str
    resume: bool


class Looking(Job):
    """The directory is not as we knew it: what is there?"""


@dataclass(slots=True, kw_only=True, eq=False)
class Saving(Job):
    pid: Pid
    slots: list[Slot]
    """Pinned."""
    out: deque[Output | TurnEnd] = field(default_factory=deque)
    """What is in the image of the pipe: nobody may read it meanwhile. Of idle ones, nothing."""
    ends: int = 0
    stopped: bool = False
    """Whether it says that the process was stopped."""

    @property
    def idle(self) -> bool:
        return self.path.startswith(IDLE)


class Reading(Job):
    pass


@dataclass(slots=True, kw_only=True, eq=False)
class Loading(Job):
    process: Process
    computed: int
    pages: list[Arriving]


@dataclass(slots=True, kw_only=True, eq=False)
class Removing(Job):
    pid: Pid | None = None
    """Its process has come back: that is the answer, whatever becomes of the file."""


@dataclass(slots=True)
class Pending:
    """A suspend whose process has not left the device yet."""

    call_id: int
    who: Principal
    path: str
    fetched: bool = False
    """Its pages were called up from the swap file."""
    problem: KernelError | None = None
    """Why it cannot be written: it goes on with the next step, before the plan."""


@dataclass(slots=True)
class Return:
    """Idle processes come back after a boot, one after another; or their images are wiped."""

    call_id: int
    left: deque[str] = field(default_factory=deque)
    came: int = 0


@dataclass(slots=True)
class ImageStats:
    saved: int = 0
    resumed: int = 0
    failed: int = 0
    """Commands that failed or came too late."""
    refused: int = 0
    """Images that are damaged or do not fit this machine."""
    pages_lost: int = 0
    """Pages that were in an image and had to be computed again."""


AnyJob = TypeVar("AnyJob", bound=Job)


class Images:
    """`send` takes device commands, `reply` the answers to calls."""

    def __init__(
        self,
        params: Params,
        frame_bytes: int,
        send: Callable[[Command], None],
        new_ticket: Callable[[], Ticket],
        reply: Callable[[int, object], None],
    ) -> None:
        self.model = ""
        """Fingerprint of the model that runs, the format of its keys and values, and how its
        weights are kept: all set once, at boot."""
        self.kv_dtype = ""
        self.weights = "exact"
        self.thaw: Callable[[bytes], TextStream] | None = None
        """Makes a text stream of what its `freeze` gave."""
        self.thaw_grammar: Callable[[bytes], Grammar] | None = None
        self.open = False
        self.directory = ""
        self.files: dict[str, int] = {}
        """Every image in the directory: path -> bytes."""
        self.jobs: dict[Ticket, Job] = {}
        self.pending: dict[Pid, Pending] = {}
        self.returning: Return | None = None
        self.stats = ImageStats()
        self.serial = 0
        """The number of the newest idle image."""
        self.idlers = Idlers(params)
        self.kept: dict[Pid, str] = {}
        """Where the image of a process that waits for input is."""
        self._params = params
        self._frame_bytes = frame_bytes
        self._send = send
        self._new_ticket = new_ticket
        self._reply = reply

    # ---- look only ----

    def is_busy(self, path: str) -> bool:
        """Whether something is under way with the file, perhaps for ever."""
        return any(job.path == path for job in self.jobs.values()) or any(
            pending.path == path for pending in self.pending.values()
        )

    def is_leaving(self, pid: Pid) -> bool:
        """Whether the process is in a file already, and nothing about it may change any more."""
        return any(
            isinstance(job, Saving) and job.pid == pid and not (job.idle or job.given_up)
            for job in self.jobs.values()
        )

    def is_writing(self, pid: Pid) -> bool:
        """Whether an image of it is on its way to the disk, wanted or not."""
        return bool(self._savings(pid))

    def of(self, who: Principal) -> tuple[ImageInfo, ...]:
        """Images that `suspend` has made, by name."""
        saved = [info_of(path, size) for path, size in self.files.items() if path.startswith(SAVED)]
        mine = [info for info in saved if who.root or info.tenant == who.tenant]
        return tuple(sorted(mine, key=lambda info: (info.tenant, info.name)))

    def used_bytes(self) -> int:
        """Of all files, and of those being written."""
        return sum(self.files.values()) + sum(
            job.size_bytes for job in self.jobs.values() if isinstance(job, Saving)
        )

    def lacks_room(self, meta_bytes: int, pages: int) -> KernelError | None:
        """ENOSPC if one more image would be too much."""
        size = file_bytes(meta_bytes, pages, self._frame_bytes)
        used, most = self.used_bytes(), self._params.max_image_bytes
        if used + size <= most:
            return None
        return error(
            errno.ENOSPC,
            f"an image of {size} bytes on top of {used} exceeds max_image_bytes={most}; "
            "resume or unlink some, or raise it",
        )

    def pinned_slots(self) -> list[Slot]:
        jobs = [job for job in self.jobs.values() if isinstance(job, Saving)]
        return [slot for job in jobs for slot in job.slots]

    def count_arriving(self) -> int:
        """Host slots that are being filled."""
        return sum(len(job.pages) for job in self.jobs.values() if isinstance(job, Loading))

    def next_wake_s(self) -> float | None:
        """When something is late, or an image is to be written."""
        times = [job.deadline_s for job in self.jobs.values() if not job.given_up]
        times += [0.0 for pending in self.pending.values() if pending.problem is not None]
        if self._may_write():
            due_s = self.idlers.next_s()
            times += [] if due_s is None else [due_s]
        return min(times, default=None)

    # ---- commands ----

    def start(
        self, job: AnyJob, make: Callable[[Ticket], Command], size_bytes: int, now_s: float
    ) -> AnyJob:
        """Submit a command. Its deadline reckons with all that is under way before it."""
        ticket, params = self._new_ticket(), self._params
        queued = sum(job.size_bytes for job in self.jobs.values())
        job.ticket, job.size_bytes = ticket, size_bytes
        job.deadline_s = (
            now_s + params.image_io_s + (queued + size_bytes) / params.image_bytes_per_s
        )
        self.jobs[ticket] = job
        self._send(make(ticket))
        return job

    def remove(
        self,
        path: str,
        now_s: float,
        call_id: int | None = None,
        who: Principal = NOBODY,
        pid: Pid | None = None,
    ) -> None:
        """Unlink a file; `pid`: the process that it has become."""
        job = Removing(ticket=UNSENT, path=path, deadline_s=0.0, call_id=call_id, who=who, pid=pid)
        self.start(job, lambda ticket: UnlinkImage(ticket, path), 0, now_s)

    def look_again(self, now_s: float) -> None:
        """Ask what is in the directory, unless that is asked already."""
        if not any(isinstance(job, Looking) for job in self.jobs.values()):
            looking = Looking(ticket=UNSENT, path="", deadline_s=0.0)
            self.start(looking, lambda ticket: OpenImages(ticket, self.directory), 0, now_s)

    def note_found(self, found: Iterable[tuple[str, int]]) -> None:
        """What is there, of what `suspend` has made and nobody is at just now."""
        there = {path: size for path, size in sorted_out(found)[0].items() if _is_saved(path)}
        for path in [path for path in self.files if _is_saved(path) and path not in there]:
            if not self.is_busy(path):
                del self.files[path]
        for path, size in there.items():
            if not self.is_busy(path):
                self.files[path] = size

    def drop_draft(self, path: str, now_s: float) -> None:
        """A suspend comes to nothing: if it had written its file once already, that goes."""
        if path in self.files:
            self.remove(path, now_s)

    def take_overdue(self, now_s: float) -> list[Job]:
        late = [j for j in self.jobs.values() if j.deadline_s <= now_s and not j.given_up]
        for job in late:
            job.given_up = True
        return late

    # ---- idle processes ----

    def take_due(self, now_s: float) -> Pid | None:
        """A process whose image is to be written now: one at a time, and behind all else."""
        return self.idlers.take(now_s) if self._may_write() else None

    def _may_write(self) -> bool:
        busy = any(not job.given_up for job in self.jobs.values())
        return self.open and not busy and not self.pending

    # ---- what happens to processes ----

    def note_waiting(self, pid: Pid, now_s: float) -> None:
        """It waits for input, or its reader took something while it does."""
        self.idlers.note_waiting(pid, now_s)

    def note_runs(self, pid: Pid, now_s: float) -> None:
        """It has input: what was or is being written of it is out of date."""
        self.idlers.drop(pid)
        kept = self.kept.pop(pid, None)
        if kept is not None:
            self.remove(kept, now_s)
        for job in self._savings(pid):
            if job.idle:
                job.given_up = True

    def note_gone(self, process: Process, reason: ExitReason, now_s: float) -> None:
        """It ends. If somebody was suspending it, that has failed: what nobody has read is in its
        pipe again."""
        pid = process.pid
        self.note_runs(pid, now_s)
        waiting = [job.call_id for job in self._savings(pid) if job.call_id is not None]
        for job in self._savings(pid):
            if not (job.given_up or job.idle):
                process.out, process.ends = job.out, job.ends
            job.given_up, job.call_id = True, None
        pending = self.pending.pop(pid, None)
        if pending is not None:
            waiting.append(pending.call_id)
            self.drop_draft(pending.path, now_s)
        for call_id in waiting:
            self._reply(
                call_id,
                error(errno.ESRCH, f"process {pid} ended ({reason.value}) before it was saved"),
            )

    def _savings(self, pid: Pid) -> list[Saving]:
        return [job for job in self.jobs.values() if isinstance(job, Saving) and job.pid == pid]


# ---- names ----


def path_of(tenant: str, name: str) -> str:
    """Where the image of that name is. EINVAL for names that are none."""
    if not isinstance(name, str) or not name or name.startswith(".") or "/" in name:
        raise error(
            errno.EINVAL,
            f"{name!r} is no name for an image: give one without slashes or a first dot",
        )
    try:
        folder, file = "t-" + quote(tenant, safe=""), quote(name, safe="")
    except UnicodeEncodeError:
        raise error(errno.EINVAL, f"{name!r} is no name for an image: it is no text") from None
    if max(len(folder), len(file)) > MAX_NAME_BYTES:
        raise error(
            errno.EINVAL, f"a name of an image or tenant has at most {MAX_NAME_BYTES} bytes"
        )
    return f"{SAVED}{folder}/{file}{SUFFIX}"


def info_of(path: str, size_bytes: int) -> ImageInfo:
    """Of a path that `path_of` has made."""
    folder, _, file = path.removeprefix(SAVED).removesuffix(SUFFIX).partition("/")
    return ImageInfo(unquote(file), unquote(folder.removeprefix("t-")), size_bytes)


def number_of(path: str) -> int:
    """Of the path of an idle image; 0: it is none."""
    known = _IDLE_PATH.fullmatch(path)
    return int(known[1]) if known else 0


def sorted_out(found: Iterable[tuple[str, int]]) -> tuple[dict[str, int], list[str]]:
    """Of files that somebody may have put there: those in the place of an image (path -> bytes),
    and the paths of the others."""
    images: dict[str, int] = {}
    strays: list[str] = []
    for path, size in found:
        if _is_place(path):
            images[path] = size
        else:
            strays.append(path)
    return images, strays


def _is_saved(path: str) -> bool:
    return path.startswith(SAVED)


def _is_place(path: str) -> bool:
    """Whether we could have written it: each name has one spelling."""
    if not _is_saved(path):
        return number_of(path) > 0
    info = info_of(path, 0)
    try:
        return path == path_of(info.tenant, info.name)
    except KernelError:
        return False


def title(path: str) -> str:
    """What messages call it."""
    if path.startswith(IDLE):
        return f"the idle image {path.removeprefix(IDLE)}"
    return f"image {info_of(path, 0).name!r}"
