"""One device on a bench: commands go in one by one, and a test waits for each."""

import threading

from tokenix.drivers.ops import Forward, ForwardDone, Row, SampleSpec
from tokenix.drivers.sampling import SamplingParams

PATIENCE_S = 120.0


class Bench:
    def __init__(self, device):
        self.device = device
        self.tickets = 0
        self.done = {}
        self._woken = threading.Event()
        device.set_wake(self._woken.set)

    def start(self, kind, *args):
        self.tickets += 1
        self.device.submit(kind(self.tickets, *args), 0.0)
        return self.tickets

    def wait(self, ticket):
        while ticket not in self.done:
            self._woken.clear()
            found = self.device.poll(0.0)
            self.done.update({done.ticket: done for done in found})
            if not found:
                assert self._woken.wait(PATIENCE_S)
        return self.done.pop(ticket)

    def do(self, kind, *args):
        return self.wait(self.start(kind, *args))

    def draw(self, *rows, tables=()):
        done = self.do(Forward, rows, tables)
        assert isinstance(done, ForwardDone), done
        return list(done.results)

    def close(self):
        self.device.close()


def row(pid, tokens, start=0, params=SamplingParams()):
    return Row(pid, start, tuple(tokens), SampleSpec(params, (), start + len(tokens)))
