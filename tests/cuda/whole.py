"""The whole kernel over a CUDA device on the fake GPU, driven call by call."""

from concurrent.futures import wait

from tokenix.drivers.sampling import SamplingParams
from tokenix.kernel.boot import make_kernel
from tokenix.kernel.calls import Principal, Read, Spawn
from tokenix.kernel.loop import Pump
from tokenix.kernel.params import Params
from tokenix.sched.tunables import Tunables, retune
from tokenix.tests.cuda import rig
from tokenix.tests.rude import RudeScheduler
from tokenix.tests.syscalls.conftest import PATIENT

ROOT = Principal("default", root=True)
PATIENCE_S = 100.0
NEW = 24


class Kernel:
    """A kernel and its pump over a device of `frames` frames and `slots` slots."""

    def __init__(self, frames, slots, seed=1, modes=(), make=rig.device, **options):
        device = self.device = make(seed=seed, frames=frames, host_slots=slots, **options)
        kernel = make_kernel(device, "progress", Params(poison=True), retune(Tunables(), PATIENT))
        if modes:
            kernel.scheduler = RudeScheduler(kernel.scheduler, 3, modes, seed)
        self.scheduler = kernel.scheduler
        self.pump = Pump(kernel, device)

    def ask(self, request):
        return self.pump.submit(request, ROOT)[1].result(PATIENCE_S)

    def outputs(self, prompts):
        """Tokens of all prompts, half of them drawn by seeds, at once."""
        pids = [
            self.ask(Spawn(tuple(prompt), sampling=sampling(i), max_tokens=NEW))
            for i, prompt in enumerate(prompts)
        ]
        return [self.tokens(pid) for pid in pids]

    def tokens(self, pid):
        found = []
        while True:
            (future,), _ = wait([self.pump.submit(Read(pid), ROOT)[1]], PATIENCE_S)
            result = future.result(0)
            found += [output.token for output in result.outputs]
            if result.eof:
                assert result.reason.value == "length", result.error
                return found

    def close(self):
        self.pump.close()
        assert rig.failures() == []


def sampling(i):
    if i % 2 == 0:
        return SamplingParams()
    return SamplingParams(temperature=0.9, top_p=0.95, seed=i, repetition_penalty=1.1)
