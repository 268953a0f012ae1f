"""Images that begin to be written: of a process that was suspended and has left the device, and of
one that waits for input and goes on as it is. What their ends mean for the suspended is in
`kernel/imaging.py`."""

from collections import deque

from tokenix.drivers.ops import ImageDone, SaveImage
from tokenix.kernel import imagepages
from tokenix.kernel.calls import KernelError
from tokenix.kernel.imagemeta import describe
from tokenix.kernel.images import IDLE, SUFFIX, UNSENT, Pending, Saving
from tokenix.kernel.lifecycle import Lifecycle
from tokenix.kernel.process import Process
from tokenix.kernel.state import Hold


def save(kernel: Lifecycle, process: Process, pending: Pending) -> None:
    """What it has said and nobody has read is in the image from now on, and in nobody's hands."""
    pages, computed = imagepages.pin(kernel.memory, process)
    try:
        meta = describe(kernel, process, computed)
    except KernelError as why:
        imagepages.unpin(kernel.memory, [page.slot for page in pages])
        pending.problem = why
        return
    del kernel.images.pending[process.pid]
    job = Saving(
        ticket=UNSENT, path=pending.path, deadline_s=0.0, call_id=pending.call_id,
        who=pending.who, pid=process.pid, slots=[page.slot for page in pages],
        out=process.out, ends=process.ends, stopped=bool(process.hold & Hold.SIGNAL),
    )  # fmt: skip
    process.out, process.ends = deque(), 0
    _start(kernel, job, SaveImage(UNSENT, pending.path, meta, tuple(pages)))


def save_idle(kernel: Lifecycle, process: Process) -> None:
    """With the pages that are in the host tier just now. While an earlier attempt hangs at the disk
    and keeps its slots there is no other one."""
    images = kernel.images
    if images.is_writing(process.pid):
        images.idlers.note_failed(process.pid, kernel.now_s)
        return
    pages, computed = imagepages.pin(kernel.memory, process)
    try:
        meta = describe(kernel, process, computed)
        problem = images.lacks_room(len(meta), len(pages))
        if problem is not None:
            raise problem
    except KernelError as why:
        imagepages.unpin(kernel.memory, [page.slot for page in pages])
        kernel.trace.add(kernel.now_s, process.pid, "no-image", reason=why.message)
        images.idlers.note_failed(process.pid, kernel.now_s)
        return
    images.serial += 1
    path = f"{IDLE}{images.serial}{SUFFIX}"
    job = Saving(
        ticket=UNSENT, path=path, deadline_s=0.0, pid=process.pid,
        slots=[page.slot for page in pages],
    )  # fmt: skip
    _start(kernel, job, SaveImage(UNSENT, path, meta, tuple(pages)))


def saved_idle(kernel: Lifecycle, job: Saving, event: ImageDone) -> None:
    """It is in the place of the one before; or it is tried again while the process waits."""
    images = kernel.images
    if event.error:
        images.idlers.note_failed(job.pid, kernel.now_s)
        return
    images.idlers.drop(job.pid)
    old = images.kept.pop(job.pid, None)
    images.files[job.path], images.kept[job.pid] = event.size_bytes, job.path
    images.stats.saved += 1
    if old is not None:
        images.remove(old, kernel.now_s)


def _start(kernel: Lifecycle, job: Saving, command: SaveImage) -> None:
    size = len(command.meta) + len(command.pages) * kernel.info.frame_bytes
    path, meta, pages = command.path, command.meta, command.pages
    kernel.images.start(job, lambda t: SaveImage(t, path, meta, pages), size, kernel.now_s)
    kernel.trace.add(kernel.now_s, job.pid, "save", image=path, pages=len(pages), bytes=size)
