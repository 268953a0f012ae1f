"""A policy: sort keys (pure, ending in the pid) and switches. The planner does the rest.

Smaller keys go first, except `last_resort_key`: there the greatest is paused first.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenix.sched.entity import Task
from tokenix.sched.plan import PauseMode

if TYPE_CHECKING:
    from tokenix.sched.draft import Draft
    from tokenix.sched.plan import Refuse
    from tokenix.sched.room import Bar
    from tokenix.sched.world import World

SortKey = Callable[[Task, "World"], tuple[float, ...]]
BarFor = Callable[["Draft", Task], "Bar"]
"""Which running processes may be paused for this one."""
ArrivalCheck = Callable[["World", Task], "Refuse | None"]
UntilKey = Callable[[Task, "World"], float]
Rule = Callable[["Draft", Task], bool]
"""An admission rule: whether this newcomer may come in now. The first that says no ends the
step's admissions."""


def never(task: Task, world: "World") -> float:
    """A key that does not change while its process waits."""
    return math.inf


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    phases: tuple[str, ...]
    """Order of the phases of a step; names as in planner.PHASES."""
    newcomer_key: SortKey
    resume_key: SortKey
    decode_key: SortKey
    """Who gets growth pages first."""
    prefill_key: SortKey
    last_resort_key: SortKey
    """Who is paused first when a decode cannot grow by any other means."""
    newcomer_until_s: UntilKey = never
    """When the newcomer's key changes next if nothing happens to it; absolute time."""
    rules: tuple[Rule, ...] = ()
    pause_mode: PauseMode = PauseMode.SWAP
    arrival_checks: tuple[ArrivalCheck, ...] = ()
    """Who is refused before being queued (EAGAIN)."""
    rank_key: SortKey | None = None
    """For the phase `reseat`: who should be resident, of all that want to run."""
    newcomer_bar: BarFor | None = None
    """None, here and below: only the stopped are paused for them."""
    resume_bar: BarFor | None = None
    growth_bar: BarFor | None = None
    net_leads: bool = True
    """Leads of victims count net of their way back."""
    due_lead_s: Callable[["World"], float] | None = None
    """A paused process is due below this lead; None: when its way back uses up its lead."""
    displace: bool = False
    """Newcomers are tried even when a resume found no room: they may pause others."""
    patience: bool = False
    """Newcomers that cannot be served in time are refused (EAGAIN)."""
    sets_aside: bool = False
    """Giants have a share of the pool; those beyond it make room (see giants.py)."""
    lead_chunks: bool = False
    """The tightest lead in the batch bounds the prefill of a step."""
    reserves_outputs: bool = False
    """Admission reserves a share of the outputs still to come, and learns it from retractions."""
    mixed: bool = True
    """Decodes and prefills share a step; else a step with prefill runs no decodes."""
    pause_prefills: bool = False
    """The last resort may pause processes in the middle of their prefill."""
    admit_after_pause: bool = True
    """Whether a step that paused somebody may admit."""


def ranked(name: str, key: SortKey) -> Policy:
    """A policy that ranks everybody, resident or not, by one key (see seats.py)."""
    return Policy(
        name=name,
        phases=("reseat", "decode", "prefill"),
        newcomer_key=key,
        resume_key=key,
        decode_key=key,
        prefill_key=key,
        last_resort_key=key,
        rank_key=key,
        pause_prefills=True,
    )
