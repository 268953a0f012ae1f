"""Every constant of the scheduler, with its unit and meaning; `sysctl` replaces the whole record.

The values of the `progress` rules were found in simulation and hold for all devices and traces;
most of them can be halved or doubled without effect (the safety nets), few are a choice.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from tokenix.sched.entity import Qos

MAY_BE_ZERO = frozenset(
    {
        "margin_s", "hysteresis_s", "stall_tolerance_s", "batch_quantum_s", "host_paused_share",
        "horizon_prefills", "early_spare", "recompute_share", "eta_step", "share_interactive",
        "share_stream", "share_batch", "share_idle", "buffer_pause_s", "buffer_resume_s",
        "qoe_keep_s", "seat_reserve", "retract_ahead_tokens",
    }
)  # fmt: skip
"""Where zero switches something off; all other constants are positive."""


@dataclass(frozen=True, slots=True)
class Tunables:
    # ---- objectives, per class ----
    target_interactive_s: float = 1.0
    """First token within this time after arrival."""
    target_stream_s: float = 1.0
    target_batch_s: float = 30.0
    """Batch: also the longest time without a token while paused (the minimum trickle)."""
    target_idle_s: float = 120.0
    patience_factor: float = 2.0
    """A newcomer may wait for the target, or this many times what it would take alone."""
    max_wait_targets: float = 5.0
    """After that many targets (prefills: patiences) a waiting process goes before all others."""
    stall_tolerance_s: float = 0.5
    """A token later than its deadline by more than this is a visible stall."""

    # ---- deadlines ----
    margin_s: float = 0.3
    """Resume this much before the deadline."""
    hysteresis_s: float = 1.0
    """A victim must have this much more lead than whoever displaces it."""
    batch_quantum_s: float = 5.0
    """Batch and idle processes displace each other only after this time of residence."""
    leader_pauses: int = 2
    """Paused that often without progress: a leader, not a victim again before its next token."""

    # ---- one step ----
    step_tokens: int = 2048
    """Token budget of a step."""
    step_floor_s: float = 0.1
    """A step with prefill may always last this long, however tight the leads."""
    step_limit_s: float = 0.5
    """And at most about this long, so that slow devices still hear arrivals and signals."""
    step_min_prefill_tokens: int = 64
    """A prefill that is due a chunk gets at least this much."""
    max_running: int = 256
    """Sequences with frames that run (or load) at once."""
    queue_limit: int = 1024
    """Newcomers that may wait; beyond it EAGAIN."""

    # ---- admission ----
    working_set_safety: float = 1.15
    """Factor on the share of time a stream must be resident. Without the bound: collapse."""
    residency_cap: float = 1.1
    """Upper bound of that share (a reader as fast as the device needs residence always)."""
    newcomer_share: float = 0.5
    """Of the room that is left, a newcomer takes at most this share."""
    link_share: float = 0.25
    """Of the link towards the device, what bringing back paused streams may need."""
    victim_link_share: float = 0.5
    """The same, when a single pause is judged: its way back must fit into this share."""
    host_paused_share: float = 0.9
    """Of the host tier, what paused processes may need. Copies of resident pages give way to them,
    so that the rest is for growth only."""
    recompute_share: float = 0.2
    """Of the prefill rate, what computing paused streams again may need that found no host slot;
    0: a stream without a slot is not paused for others."""
    horizon_prefills: float = 1.5
    """A newcomer cannot be paused for this many times its own prefill."""
    early_spare: float = 0.02
    """Of the pool, what must stay free after a resume ahead of time."""

    # ---- giants ----
    giant_share: float = 0.5
    """Of the pool, what giants may hold together while others want it."""
    giant_times: float = 3.0
    """A giant has so many times the pages that streams usually end with."""
    giant_least: float = 0.1
    """And this share of the pool."""
    giant_residency: float = 0.75
    """And must be resident for this share of the time: with slower readers others have their turn
    while it is paused."""

    # ---- shares ----
    share_interactive: float = 0.4
    """Of all service, what a class gets at least while it has newcomers waiting."""
    share_stream: float = 0.3
    share_batch: float = 0.05
    share_idle: float = 0.01
    share_quantum_s: float = 0.5
    """Classes and tenants are compared in service worth so many seconds of prefill."""

    # ---- controllers and estimators ----
    eta_floor: float = 0.5
    eta_step: float = 0.01
    eta_period_s: float = 1.0
    step_window_s: float = 2.0
    rate_window_s: float = 4.0
    read_window_s: float = 4.0
    read_correction: float = 2.5
    """What a client does may correct its declared rate by this factor, up or down."""
    prefill_ewma: float = 0.05
    prefill_sample_tokens: int = 512
    """Steps with that many prefill tokens always tell the prefill rate."""

    # ---- levels ----
    level_bands: int = 5
    """Bands of lead between "due" and "batch"."""
    level_band_s: float = 1.0
    """Upper end of the first band; each further one ends at twice the lead."""

    # ---- baselines ----
    reject_bound_s: float = 0.25
    """`fcfs+reject`: prefill that may be queued, in seconds. A quarter of the first-token target is
    best where memory is what newcomers wait for."""
    buffer_pause_s: float = 2.0
    """`buffer`: a reader's buffer above this is safe."""
    buffer_resume_s: float = 0.8
    """`buffer`: and below this it is filled again."""
    qoe_horizon_s: float = 4.0
    """`qoe`: the gain is what a process would lose if it waited so long."""
    qoe_keep_s: float = 1.0
    """`qoe`: and for so long it keeps its frames."""
    mlfq_quantum_tokens: int = 512
    """`mlfq`: quantum of the first level; each further one has twice as much."""
    mlfq_levels: int = 12
    mlfq_starve_s: float = 20.0
    """`mlfq`: after so long without service a process starts at the top again."""
    seat_reserve: float = 0.02
    """Of the pool, what the phase `reseat` keeps free for growth."""

    # ---- retract ----
    retract_ratio_start: float = 0.7
    retract_ratio_floor: float = 0.1
    retract_decay_steps: int = 600
    retract_ahead_tokens: int = 20
    retract_clip_tokens: int = 4096

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            least = 0 if each.name in MAY_BE_ZERO else math.ulp(0.0)
            said = "be positive" if least else "not be negative"
            assert math.isfinite(value) and value >= least, f"{each.name} must {said}"
        assert 0 < self.target_interactive_s <= self.target_stream_s
        assert self.target_stream_s <= self.target_batch_s <= self.target_idle_s
        assert self.patience_factor >= 1 and self.max_wait_targets >= 1
        assert 0 <= self.margin_s and 0 <= self.hysteresis_s and 0 <= self.stall_tolerance_s
        assert 0 < self.step_floor_s <= self.step_limit_s
        assert 0 < self.step_min_prefill_tokens <= self.step_tokens
        assert 0 < self.max_running <= self.step_tokens, (
            "max_running is above step_tokens, and every decode must get its token"
        )
        assert self.queue_limit > 0 and self.leader_pauses > 0
        assert self.working_set_safety > 0 and self.residency_cap >= 1
        for share in (self.newcomer_share, self.link_share, self.victim_link_share, self.eta_floor):
            assert 0 < share <= 1
        assert 0 < self.giant_share <= 1 and 0 < self.giant_least <= 1
        assert self.giant_times >= 1 and 0 < self.giant_residency <= self.residency_cap
        assert 0 <= self.recompute_share < 1
        assert 0 <= self.host_paused_share <= 1 and 0 <= self.early_spare < 1
        assert 0 < self.prefill_ewma <= 1 and self.read_correction >= 1
        shares = [self.share_of(qos) for qos in Qos]
        assert min(shares) >= 0 and sum(shares) <= 1 and self.share_quantum_s > 0
        assert self.reject_bound_s > 0 and self.qoe_horizon_s > 0
        assert 0 <= self.buffer_resume_s <= self.buffer_pause_s
        assert self.mlfq_quantum_tokens > 0 and self.mlfq_levels >= 1 and self.mlfq_starve_s > 0
        assert 0 <= self.seat_reserve < 1
        assert self.level_bands >= 1 and self.level_band_s > 0
        assert 0 < self.retract_ratio_floor <= self.retract_ratio_start <= 1

    def share_of(self, qos: Qos) -> float:
        """The guaranteed share of a class."""
        return (self.share_interactive, self.share_stream, self.share_batch, self.share_idle)[qos]

    def target_s(self, qos: Qos) -> float:
        """The first-token objective of a class."""
        return (
            self.target_interactive_s,
            self.target_stream_s,
            self.target_batch_s,
            self.target_idle_s,
        )[qos]


def retune(base: Tunables, values: Mapping[str, float]) -> Tunables:
    """`base` with other values. ValueError: there is no such constant, or it cannot be so."""
    known = {each.name: type(getattr(base, each.name)) for each in fields(base)}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"no tunable {name!r}; the tunables are {', '.join(known)}")
        if not math.isfinite(value) or (known[name] is int and value != int(value)):
            kind = "a whole number" if known[name] is int else "finite"
            raise ValueError(f"{name} must be {kind}, not {value}")
    try:
        return replace(base, **{name: known[name](value) for name, value in values.items()})
    except AssertionError as why:
        said = ", ".join(f"{name}={value:g}" for name, value in values.items())
        hint = str(why) or "out of range, or in conflict with another constant"
        raise ValueError(f"{said} cannot be: {hint}") from None
