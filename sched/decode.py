"""One token for every process past its prefill, with a new page where the last one is full."""

from tokenix.sched.draft import Draft
from tokenix.sched.entity import Task
from tokenix.sched.room import Room, growth_bar, last_resort, make_room


def run_decodes(draft: Draft) -> None:
    """Fill `draft.run` with the decodes; those that need a page in the policy's order."""
    if not draft.policy.mixed and draft.run:
        return
    new = {**draft.loaded, **draft.admit}  # these brought their growth page with them
    growing: list[Task] = []
    for task in draft.runnable():
        pid = task.entity.pid
        if task.todo_tokens != 1 or pid in draft.run:
            continue
        if pid in new or draft.world.growth(task) == 0:
            draft.run[pid] = 1
        else:
            growing.append(task)
    growing.sort(key=lambda task: draft.policy.decode_key(task, draft.world))
    for task in growing:
        if task.entity.pid not in draft.pause:
            _grow(draft, task)


def _grow(draft: Draft, task: Task) -> None:
    """Run `task` if it gets its page in this step."""
    frames = draft.world.growth(task)
    bar = growth_bar(draft, task)
    room = make_room(draft, frames, task, bar, f"growth of {task.entity.pid}")
    if room is Room.NO:
        draft.pressure = True
        room = last_resort(draft, task, frames)
    if room is Room.NOW:
        draft.do_grow(task, frames)
        draft.run[task.entity.pid] = 1
