"""One token for every process past its prefill, with a new page where the last one is full."""

from tokenix.sched.draft import Draft
from tokenix.sched.entity import Task
from tokenix.sched.room import Room, last_resort, make_room


def run_decodes(draft: Draft) -> None:
    """All decodes of the run list, those that need a page in the policy's order if they get it;
    and whoever was admitted or loaded with one token to compute, which brought its page."""
    if not draft.policy.mixed and draft.run:
        return
    runlist = draft.world.queues.runlist
    again = draft.decoding
    draft.decoding = True
    for task in (*draft.loaded.values(), *draft.admit.values()):
        if task.todo_tokens == 1:
            draft.run.setdefault(task.entity.pid, 1)
    wanting = draft.resting if again else runlist.growing
    growing = [task for pid, task in wanting.items() if pid not in draft.pause]
    for task in growing:
        draft.resting[task.entity.pid] = task
    if not again and _all_fit(draft, growing):
        return
    growing.sort(key=lambda task: draft.policy.decode_key(task, draft.world))
    for task in growing:
        if task.entity.pid not in draft.pause:
            _grow(draft, task)


def _all_fit(draft: Draft, growing: list[Task]) -> bool:
    """Whether there is a page for everybody, so that no order matters; they get it then."""
    frames = [draft.world.growth(task) for task in growing]
    if sum(frames) > draft.ledger.available:
        return False
    for task, count in zip(growing, frames, strict=True):
        draft.do_grow(task, count)
        del draft.resting[task.entity.pid]
    return True


def _grow(draft: Draft, task: Task) -> None:
    """Run `task` if it gets its page in this step."""
    frames = draft.world.growth(task)
    room = make_room(draft, frames, task, draft.policy.growth_bar, f"growth of {task.entity.pid}")
    if room is Room.NO:
        draft.pressure = True
        room = last_resort(draft, task, frames)
    if room is Room.NOW:
        draft.do_grow(task, frames)
        del draft.resting[task.entity.pid]
