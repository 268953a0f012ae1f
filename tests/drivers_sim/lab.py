"""A conformance machine whose device is known to be the simulated one."""

from collections.abc import Sequence

from tokenix.drivers.ops import Completion, SamplingParams
from tokenix.drivers.sim import CostModel, FaultPlan, SimDevice, expected_tokens
from tokenix.mm.ids import Ticket
from tokenix.tests.device.machine import Harness, Machine, Proc

VOCAB = 1009
PAGE = 4
COST = CostModel(
    base_s=1.0,
    prefill_token_s=0.0,
    decode_row_s=0.0,
    kv_token_s=0.0,
    copy_base_s=0.0,
    out_page_s=1.0,
    in_page_s=1.0,
    frame_s=0.5,
)
"""Round numbers: a forward and each page of a copy take one second."""


class Lab(Machine):
    def __init__(
        self,
        faults: FaultPlan | None = None,
        cost: CostModel = COST,
        seed: int = 0,
        host_slots: int = 16,
        max_context_tokens: int = 1 << 20,
        strict_poison: bool = False,
    ) -> None:
        self.sim = SimDevice(
            32,
            host_slots,
            PAGE,
            VOCAB,
            cost=cost,
            faults=faults,
            max_context_tokens=max_context_tokens,
            seed=seed,
            strict_poison=strict_poison,
            covers_loads=True,
        )
        super().__init__(
            Harness("sim", VOCAB, PAGE, lambda frames, slots, page: self.sim, virtual=True)
        )

    @property
    def now_s(self) -> float:
        return self._now_s

    def pass_s(self, seconds: float) -> list[Completion]:
        """Let virtual time pass and take what completes."""
        self._now_s += seconds
        done = self.poll()
        self._done.update((completion.ticket, completion) for completion in done)
        return done

    def is_done(self, ticket: Ticket) -> bool:
        return ticket in self._done

    def story(
        self, frames: Sequence[int], tokens: int = 2, prompt: Sequence[int] = range(1, 10)
    ) -> Proc:
        """A process that has drawn `tokens` tokens."""
        proc = self.proc(prompt, frames, SamplingParams())
        self.decode(proc, tokens=tokens)
        return proc

    def is_true(self, proc: Proc) -> bool:
        """Whether the process has drawn what an undisturbed one draws."""
        drawn = proc.tokens[proc.prompt :]
        return drawn == expected_tokens(
            proc.tokens[: proc.prompt], len(drawn), proc.params, vocab=VOCAB
        )
