"""The two numbers that tune themselves, and what they listen to."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tokenix.sched.entity import Task
from tokenix.sched.load import Load
from tokenix.sched.tunables import Tunables


@dataclass(slots=True)
class Controllers:
    eta: float = 1.0
    """Bound of the working set as a share of the pool: starts at the physical one, only ever
    goes below it. A bound above it collapses, and no feedback sees that in time."""
    new_token_ratio: float = field(default=-1.0)
    """`retract`: share of the remaining outputs that admission reserves; negative: not started."""
    pressure: bool = False
    """A plan of the last period found no room for a due resume or a growing decode."""
    working_set_pages: float = 0.0
    """As the last plan with a newcomer counted it."""
    checked_s: float | None = None

    def note_plan(self, pressure: bool, load: Load | None) -> None:
        """The only trace a plan leaves."""
        self.pressure |= pressure
        if load is not None:
            self.working_set_pages = load.resident_pages

    def note_step(self, now_s: float, total_frames: int, tunables: Tunables) -> None:
        """Once a period: down to the working set that was too much, or a little up."""
        if self.checked_s is None:
            self.checked_s = now_s
        if now_s - self.checked_s < tunables.eta_period_s:
            return
        self.checked_s = now_s
        if not self.pressure:
            self.eta = min(1.0, self.eta + tunables.eta_step)
        elif self.working_set_pages > tunables.eta_floor * total_frames > 0:
            self.eta = max(tunables.eta_floor, min(self.eta, self.working_set_pages / total_frames))
        self.pressure = False

    def ratio(self, tunables: Tunables) -> float:
        """The new-token ratio, from its start on."""
        return self.new_token_ratio if self.new_token_ratio >= 0 else tunables.retract_ratio_start

    def note_decode_step(self, tunables: Tunables) -> None:
        """Each decode step without a retraction trusts a little more."""
        fall = tunables.retract_ratio_start - tunables.retract_ratio_floor
        ratio = self.ratio(tunables) - fall / tunables.retract_decay_steps
        self.new_token_ratio = max(tunables.retract_ratio_floor, ratio)

    def note_retraction(self, running: Iterable[Task], tunables: Tunables) -> None:
        """After a retraction: what those that still run have used of their outputs."""
        used = bound = count = 0
        for task in running:
            used += max(0, task.length - task.entity.prompt_tokens)
            bound += task.entity.max_tokens
            count += 1
        ratio = (used + tunables.retract_ahead_tokens * count) / (bound + 1)
        self.new_token_ratio = max(tunables.retract_ratio_floor, min(1.0, ratio))
