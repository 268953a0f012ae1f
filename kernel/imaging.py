"""What is done about images: suspend, resume, idle processes, and the ends of their commands.

Whatever fails, is late or is damaged: a suspended process that cannot be saved goes on as if
nothing had happened, an image that cannot be trusted is refused, a page that cannot be read is
computed again. `kernel/images.py` keeps the books, `kernel/imagewriting.py` begins what is written.
"""

import errno

from tokenix.drivers.ops import ImageDone, LoadImage, OpenImages, ReadImage
from tokenix.kernel import imagepages, imagewriting
from tokenix.kernel.answers import ExitReason
from tokenix.kernel.calls import (
    ImageDir,
    KernelError,
    Principal,
    Resume,
    Suspend,
    UnlinkImage,
    error,
)
from tokenix.kernel.event import Call
from tokenix.kernel.imagemeta import revive, understand
from tokenix.kernel.images import (
    IDLE,
    SAVED,
    UNSENT,
    Job,
    Loading,
    Looking,
    Opening,
    Pending,
    Reading,
    Removing,
    Return,
    Saving,
    info_of,
    number_of,
    path_of,
    sorted_out,
    title,
)
from tokenix.kernel.lifecycle import Lifecycle
from tokenix.kernel.process import Process
from tokenix.kernel.state import Hold, State
from tokenix.mm.ids import Pid

GONE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
"""Of a file: it is not there any more, or a directory is in its place or not above it."""

# ---- calls ----


def open_images(kernel: Lifecycle, call: Call, request: ImageDir) -> None:
    """Use a directory; answered when its idle processes are back, or their images are gone."""
    images = kernel.images
    if not call.principal.root:
        raise error(errno.EPERM, "only root may name an image directory")
    if images.open or images.jobs:
        raise error(errno.EBUSY, "there is an image directory already")
    job = Opening(
        ticket=UNSENT, path="", deadline_s=0.0, call_id=call.call_id,
        directory=request.directory, resume=request.resume,
    )  # fmt: skip
    images.start(job, lambda ticket: OpenImages(ticket, request.directory), 0, kernel.now_s)


def suspend(kernel: Lifecycle, call: Call, request: Suspend) -> None:
    """The process leaves the device, then the machine; answered when its image is on the disk."""
    images = kernel.images
    _check_open(kernel)
    process = kernel.find_living(call.principal, request.pid)
    path = path_of(process.tenant, request.name)
    if process.pid in images.pending:
        raise error(errno.EBUSY, f"process {process.pid} is being suspended already")
    _check_idle(kernel, path)
    if path in images.files:
        raise error(errno.EEXIST, f"{title(path)} exists; resume or unlink it, or name another one")
    problem = images.lacks_room(4 * process.length, process.space.mapped)
    if problem is not None:
        raise problem
    images.pending[process.pid] = Pending(call.call_id, call.principal, path)
    kernel.set_hold(process, Hold.SUSPEND)
    kernel.trace.add(kernel.now_s, process.pid, "suspend", image=path)


def resume(kernel: Lifecycle, call: Call, request: Resume) -> None:
    """Bring a process back; answered with its new pid when its pages are in the host tier
    and the image is gone."""
    _check_open(kernel)
    path = path_of(call.principal.tenant, request.name)
    _check_idle(kernel, path)
    _read(kernel, path, call.call_id, call.principal)


def unlink(kernel: Lifecycle, call: Call, request: UnlinkImage) -> None:
    """Remove an image; answered when it is gone."""
    _check_open(kernel)
    path = path_of(call.principal.tenant, request.name)
    _check_idle(kernel, path)
    kernel.images.remove(path, kernel.now_s, call.call_id, call.principal)


def cancel(kernel: Lifecycle, who: Principal, call_id: int) -> bool:
    """Take back a call: the process goes on, or does not come."""
    images = kernel.images
    for pid, pending in images.pending.items():
        if pending.call_id == call_id and (who.root or who == pending.who):
            del images.pending[pid]
            images.drop_draft(pending.path, kernel.now_s)
            kernel.clear_hold(kernel.processes[pid], Hold.SUSPEND)
            kernel.reply(call_id, error(errno.EINTR, "the call was cancelled"))
            return True
    for job in images.jobs.values():
        if job.call_id == call_id and (who.root or who == job.who):
            if isinstance(job, Removing) and job.pid is not None:
                _answer(kernel, job, job.pid)  # it is there already
                return False
            job.call_id, job.given_up = None, not isinstance(job, Removing)
            if isinstance(job, Saving):
                _go_on(kernel, job)
            kernel.reply(call_id, error(errno.EINTR, "the call was cancelled"))
            return True
    return False


def _check_open(kernel: Lifecycle) -> None:
    if not kernel.images.open:
        raise error(
            errno.EINVAL,
            "this machine keeps no images: boot with image_dir=, or tokenix serve --image-dir",
        )


def _check_idle(kernel: Lifecycle, path: str) -> None:
    if kernel.images.is_busy(path):
        raise error(errno.EBUSY, f"{title(path)} is in use by another call")


# ---- in every step ----


def look(kernel: Lifecycle) -> None:
    """Before the plan: what is late, and who has waited for long."""
    for job in kernel.images.take_overdue(kernel.now_s):
        kernel.images.stats.failed += 1
        kernel.trace.add(kernel.now_s, None, "image-late", image=job.path)
        late = ImageDone(job.ticket, errno.ETIMEDOUT, "the disk did not answer in time")
        _conclude(kernel, job, late)
    for pid, pending in list(kernel.images.pending.items()):
        if pending.problem is not None:
            del kernel.images.pending[pid]
            kernel.images.drop_draft(pending.path, kernel.now_s)
            kernel.clear_hold(kernel.processes[pid], Hold.SUSPEND)
            kernel.reply(pending.call_id, pending.problem)
    due = kernel.images.take_due(kernel.now_s)
    process = None if due is None else kernel.processes.get(due)
    if process is not None:
        imagewriting.save_idle(kernel, process)
    _return_next(kernel)


def work(kernel: Lifecycle) -> None:
    """After the plan: save those that have left the device."""
    for pid, pending in list(kernel.images.pending.items()):
        process = kernel.processes[pid]
        if process.state is State.SWAPPED and process.space.deep and not pending.fetched:
            pending.fetched = True
            rate = kernel.scheduler.rates.prefill_tokens_per_s
            kernel.memory.fetch(process, rate, kernel.now_s)
            if kernel.memory.awaits(pid):
                kernel.move(process, State.FETCHING)
        if process.state in (State.NEW, State.SWAPPED) and pending.problem is None:
            imagewriting.save(kernel, process, pending)


def _read(kernel: Lifecycle, path: str, call_id: int | None, who: Principal) -> None:
    job = Reading(ticket=UNSENT, path=path, deadline_s=0.0, call_id=call_id, who=who)
    kernel.images.start(job, lambda ticket: ReadImage(ticket, path), 0, kernel.now_s)


# ---- the ends of commands ----


def done(kernel: Lifecycle, event: ImageDone) -> None:
    """A command has ended, perhaps long after anybody wanted it."""
    images = kernel.images
    job = images.jobs.pop(event.ticket)
    if event.error:
        images.stats.failed += 1
        kernel.trace.add(kernel.now_s, None, "image-failed", image=job.path, reason=event.reason)
    if event.error in GONE and images.open and not isinstance(job, Looking):
        images.look_again(kernel.now_s)
    if isinstance(job, Saving):
        imagepages.unpin(kernel.memory, job.slots)
    if not job.given_up:
        _conclude(kernel, job, event)
    elif isinstance(job, Saving) and not event.error:
        images.remove(job.path, kernel.now_s)  # its process went on, or ended
    elif isinstance(job, Saving):
        images.drop_draft(job.path, kernel.now_s)
    elif isinstance(job, Loading):
        imagepages.give_back(kernel.memory, job.pages)
    elif isinstance(job, Removing) and _is_free(event):
        images.files.pop(job.path, None)
    _return_next(kernel)


def _conclude(kernel: Lifecycle, job: Job, event: ImageDone) -> None:
    """What the end of a command means; called once, for its end or for its deadline."""
    match job:
        case Opening():
            _opened(kernel, job, event)
        case Looking():
            if not event.error:
                kernel.images.note_found(event.files)
        case Saving() if job.idle:
            imagewriting.saved_idle(kernel, job, event)
        case Saving():
            _saved(kernel, job, event)
        case Reading():
            _understood(kernel, job, event)
        case Loading():
            _loaded(kernel, job, event)
        case Removing():
            if _is_free(event):
                kernel.images.files.pop(job.path, None)
            _answer(kernel, job, _failure(job, event) if event.error and not job.pid else job.pid)


def _is_free(event: ImageDone) -> bool:
    """Of an unlink: whether the name has no image any more."""
    return not event.error or event.error in GONE


def _opened(kernel: Lifecycle, job: Opening, event: ImageDone) -> None:
    images = kernel.images
    if event.error:
        _answer(kernel, job, error(event.error, f"no images can be kept there: {event.reason}"))
        return
    images.open, images.directory = True, job.directory
    images.files, strays = sorted_out(event.files)
    strays += event.strays
    if strays:
        kernel.trace.add(kernel.now_s, None, "image-strays", count=len(strays), first=min(strays))
    left = [path for path in images.files if path.startswith(IDLE)]
    images.serial = max(map(number_of, left), default=0)
    assert job.call_id is not None
    images.returning = Return(job.call_id)
    if job.resume:
        images.returning.left.extend(left)
    else:
        for path in left:
            images.remove(path, kernel.now_s)
    _return_next(kernel)


def _return_next(kernel: Lifecycle) -> None:
    """Of those that come back after a boot, the next one; the boot is over behind the last."""
    images = kernel.images
    back = images.returning
    if back is None or any(not job.given_up for job in images.jobs.values()):
        return
    if back.left:
        _read(kernel, back.left.popleft(), None, Principal(root=True))
    else:
        images.returning = None
        kernel.reply(back.call_id, back.came)


def _saved(kernel: Lifecycle, job: Saving, event: ImageDone) -> None:
    process = kernel.processes[job.pid]
    images = kernel.images
    if event.error:
        if not job.given_up:  # else its end is still to come
            images.drop_draft(job.path, kernel.now_s)
        _go_on(kernel, job)
        _answer(kernel, job, _failure(job, event))
        return
    if bool(process.hold & Hold.SIGNAL) != job.stopped and job.call_id is not None:
        process.out, process.ends = job.out, job.ends  # a signal came meanwhile: write it again
        images.files[job.path] = event.size_bytes
        images.pending[job.pid] = Pending(job.call_id, job.who, job.path, fetched=True)
        return
    images.files[job.path] = event.size_bytes
    images.stats.saved += 1
    process.text = None  # what it holds back is in the image
    kernel.exit(process, ExitReason.SUSPENDED)
    _answer(kernel, job, info_of(job.path, event.size_bytes))


def _go_on(kernel: Lifecycle, job: Saving) -> None:
    """It could not be saved: as if nothing had happened."""
    process = kernel.processes[job.pid]
    process.out, process.ends = job.out, job.ends
    kernel.clear_hold(process, Hold.SUSPEND)
    kernel.serve_readers((process,))


def _understood(kernel: Lifecycle, job: Reading, event: ImageDone) -> None:
    """The meta of an image: make the process, and ask for its pages."""
    if event.error:
        if event.error in GONE:
            kernel.images.files.pop(job.path, None)
        _refuse(kernel, job, _failure(job, event))
        return
    try:
        meta = understand(kernel, event.meta)
        if job.path.startswith(SAVED) and meta.tenant != info_of(job.path, 0).tenant:
            raise error(errno.EBADMSG, "it is of another tenant")
        process = revive(kernel, meta)
        if job.call_id is not None and not process.hold:
            _check_arrival(kernel, process)
    except KernelError as why:
        number = errno.EIO if why.errno is None else why.errno
        text = f"{title(job.path)} cannot be resumed: {why.message}"
        _refuse(kernel, job, error(number, text, why.retry_after_s))
        return
    computed = meta.computed if meta.page_tokens == kernel.info.page_tokens else 0
    computed = min(computed, event.pages * meta.page_tokens)
    kernel.images.stats.pages_lost += process.space.pages_for(meta.computed - computed)
    pages = imagepages.take(kernel.memory, process, computed)
    loading = Loading(
        ticket=UNSENT, path=job.path, deadline_s=0.0, call_id=job.call_id, who=job.who,
        process=process, computed=computed, pages=pages,
    )  # fmt: skip
    path, digest, loads = job.path, event.digest, imagepages.loads(pages)
    size = len(pages) * kernel.info.frame_bytes
    kernel.images.start(
        loading, lambda ticket: LoadImage(ticket, path, digest, loads), size, kernel.now_s
    )


def _check_arrival(kernel: Lifecycle, process: Process) -> None:
    refusal = kernel.scheduler.check_arrival(process, kernel.view_of_now(), kernel.now_s)
    if refusal is not None:
        kernel.counters.refused += 1
        kernel.meters.note_refused(process.tenant, process.entity.qos)
        raise error(
            errno.EAGAIN,
            f"overloaded: {refusal.reason}; retry after {refusal.retry_after_s:.2f} s",
            refusal.retry_after_s,
        )


def _loaded(kernel: Lifecycle, job: Loading, event: ImageDone) -> None:
    """The process is there, with the pages that are."""
    images, process = kernel.images, job.process
    pages = job.pages
    if job.given_up:
        pages = []  # the device may still be writing them
    computed = imagepages.attach(kernel.memory, process, job.computed, pages, event.bad)
    if len(kernel.processes) + len(kernel.zombies) >= kernel.params.max_processes:
        kernel.memory.truncate(process, 0)
        _refuse(kernel, job, error(errno.EAGAIN, "too many processes; wait for some", 1.0))
        return
    lost = process.space.pages_for(job.computed) - process.space.mapped
    images.stats.pages_lost += lost
    images.stats.resumed += 1
    kernel.counters.spawned += 1
    kernel.add(process)
    kernel.move(process, State.SWAPPED)
    kernel.trace.add(
        kernel.now_s, process.pid, "revive", image=job.path, tokens=process.length,
        computed=computed, lost=lost,
    )  # fmt: skip
    if job.path.startswith(IDLE):
        _keep(kernel, process.pid, job.path)
    else:
        if event.error:  # a disk that fails may keep its caller waiting once more
            _answer(kernel, job, process.pid)
        images.remove(job.path, kernel.now_s, job.call_id, job.who, process.pid)
        job.call_id = None


def _keep(kernel: Lifecycle, pid: Pid, path: str) -> None:
    """It is idle again, and its image is still good."""
    images = kernel.images
    images.idlers.drop(pid)
    images.kept[pid] = path
    if images.returning is not None:
        images.returning.came += 1


def _refuse(kernel: Lifecycle, job: Job, why: KernelError) -> None:
    """The image stays as it is; but a damaged one of an idle process is of no use to anybody."""
    kernel.images.stats.refused += 1
    kernel.trace.add(kernel.now_s, None, "image-refused", image=job.path, reason=why.message)
    if job.path.startswith(IDLE) and why.errno == errno.EBADMSG:
        kernel.images.remove(job.path, kernel.now_s)
    _answer(kernel, job, why)


def _answer(kernel: Lifecycle, job: Job, value: object) -> None:
    if job.call_id is not None:
        kernel.reply(job.call_id, value)
        job.call_id = None


def _failure(job: Job, event: ImageDone) -> KernelError:
    number = event.error if event.error in errno.errorcode else errno.EIO
    return error(number, f"{title(job.path)}: {event.reason}")
