"""What the device does per second, measured: step time, steps per second, prefill rate.

Three numbers on purpose. The time-weighted step time `S` is what a deadline must wait for; steps
per second `D` is what a resident stream decodes; with short decodes between long prefills S is
several times 1/D, and a working set computed from S would refuse everybody.
"""

from dataclasses import dataclass, field

from tokenix.sched.tunables import Tunables


@dataclass(slots=True)
class Rates:
    step_s: float
    """S: EWMA of the step time, weighted by time. Starts at the time of a decode step."""
    prefill_tokens_per_s: float
    """F: EWMA over the steps that a prefill dominates."""
    steps_per_s: float = field(init=False)
    """D: EWMA of 1 / step time."""
    decode_step_s: float = field(init=False)
    """EWMA of the steps without prefill; a step of twice that was dominated by its prefill."""
    prefill_samples: int = 0

    def __post_init__(self) -> None:
        assert self.step_s > 0 and self.prefill_tokens_per_s > 0
        self.steps_per_s = 1.0 / self.step_s
        self.decode_step_s = self.step_s

    def note_step(
        self, duration_s: float, prefill_tokens: int, decodes: int, tunables: Tunables
    ) -> None:
        """Learn from a step that took `duration_s`."""
        if duration_s <= 0:
            return
        self.step_s += (duration_s - self.step_s) * min(1.0, duration_s / tunables.step_window_s)
        weight = min(1.0, duration_s / tunables.rate_window_s)
        self.steps_per_s += (1.0 / duration_s - self.steps_per_s) * weight
        if not prefill_tokens:
            self.decode_step_s += (duration_s - self.decode_step_s) * 0.1
        elif self._tells_prefill(duration_s, prefill_tokens, decodes, tunables):
            self.prefill_samples += 1
            sample = (prefill_tokens + decodes) / duration_s
            gain = max(tunables.prefill_ewma, 1.0 / (1 + self.prefill_samples))
            if not 0.25 < sample / self.prefill_tokens_per_s < 4.0:
                gain = max(gain, 0.3)  # the device is another than it said at boot: catch up
            self.prefill_tokens_per_s += (sample - self.prefill_tokens_per_s) * gain

    def _tells_prefill(
        self, duration_s: float, prefill_tokens: int, decodes: int, tunables: Tunables
    ) -> bool:
        """A big chunk tells the rate; a small one only on a device where it takes long."""
        if prefill_tokens >= tunables.prefill_sample_tokens:
            return True
        return prefill_tokens > decodes and duration_s > 2 * self.decode_step_s
