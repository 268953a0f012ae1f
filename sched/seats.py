"""Who should be resident: all that want to run, ranked; as many as fit get a seat.

For policies that rank everybody by one key (`mlfq`, `qoe`, `oracle-srpt`). Whoever has a seat and
is not resident is brought in, in order; for that, residents without a seat are paused from the end
of the ranking, as many as are needed. Residents without a seat run on as long as nobody needs
their frames.
"""

from tokenix.sched.draft import Draft
from tokenix.sched.entity import Task
from tokenix.sched.room import Room, make_room


def reseat(draft: Draft) -> None:
    """Admit, resume and pause by rank."""
    queues = draft.world.queues
    if not queues.waiting and not queues.paused:
        return
    order = rank(draft)
    seated = count_seats(draft, order)
    last = order[seated:]
    for task in order[:seated]:
        pid = task.entity.pid
        if pid in queues.ready:
            continue
        if draft.count_running() >= draft.world.tunables.max_running and not last:
            return
        if not bring_in(draft, task, last):
            return
    free_ahead(draft, last)


def rank(draft: Draft) -> list[Task]:
    """All that want to run, first to last."""
    queues, key = draft.world.queues, draft.policy.rank_key
    assert key is not None, "a policy that reseats ranks"
    everybody = [*queues.ready.values(), *queues.paused.values(), *queues.waiting.values()]
    return sorted(everybody, key=lambda task: key(task, draft.world))


def count_seats(draft: Draft, order: list[Task]) -> int:
    """How many of the first fit beside what is moving; at least one."""
    world = draft.world
    pages = reserve(draft) + sum(task.space.mapped for task in world.queues.moving.values())
    most = world.tunables.max_running - sum(t.space.active for t in world.queues.moving.values())
    for count, task in enumerate(order):
        pages += world.footprint(task) + 1
        if count and (pages > world.memory.total_frames or count >= most):
            return count
    return len(order)


def reserve(draft: Draft) -> int:
    """Frames that are kept for growth."""
    return int(draft.world.tunables.seat_reserve * draft.world.memory.total_frames)


def bring_in(draft: Draft, task: Task, last: list[Task]) -> bool:
    """Admit or resume `task`, pausing from the end of `last`; False if it must wait."""
    world = draft.world
    waits = task.entity.pid in world.queues.waiting
    if not waits and draft.do_fetch(task):
        return True
    need = world.need(task)
    reason = f"{'newcomer' if waits else 'resume of'} {task.entity.pid}"
    room = make_room(draft, need, task, None, reason)
    if room is Room.NO:
        mine = 0 if waits else task.space.idle_resident
        pause_last(draft, last, need + mine - draft.ledger.available, reason)
        room = make_room(draft, need, task, None, reason)
    if room is not Room.NOW or draft.count_running() >= world.tunables.max_running:
        return False
    if waits:
        draft.do_admit(task)
    else:
        draft.do_resume(task)
    return True


def pause_last(draft: Draft, last: list[Task], short: int, reason: str) -> None:
    """Pause from the end until `short` frames are free or on their way; nobody if all of them
    do not suffice."""
    short -= draft.ledger.outgoing
    victims: list[Task] = []
    for task in reversed(last):
        if short <= 0:
            break
        pid = task.entity.pid
        resident = pid in draft.world.queues.ready and pid not in draft.pause
        if resident and not task.entity.leader and task.space.exclusive > 0:
            victims.append(task)
            short -= task.space.exclusive
    if short <= 0:
        for task in victims:
            draft.do_pause(task, reason)


def free_ahead(draft: Draft, last: list[Task]) -> None:
    """Keep the reserve: growth should find frames and not have to wait for copies."""
    short = reserve(draft) - draft.ledger.available
    if short > 0:
        pause_last(draft, last, short, "reserve")
