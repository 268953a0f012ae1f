"""A soak: every tier full, for as long as you like, with new chances each time.

    random worlds of all kinds   on the simulated device, with new seeds      tests/sim/world.py
    the real model               its frames, slots and blocks are all taken; streams are stopped,
                                 forked and killed, the file comes and goes, and copies fail, are
                                 late, or change bits

    python -m tokenix.tests.soak [--seconds 600] [--seed N] [--only worlds|model]

Prints what it did. Exits 1 at the first difference, with the line that shows it again, and if it
had no time to do what it is for: no world ended, no stream ended, or a tier that nothing passed.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import tokenix
from tokenix.drivers.cpu.jit import Array
from tokenix.drivers.faults import Faults
from tokenix.drivers.ops import Command, CopyIn, CopyOut, Fetch, PageOut, Store
from tokenix.kernel.params import Params
from tokenix.mm.ids import Pid
from tokenix.syscalls.inproc import Syscalls
from tokenix.syscalls.requests import SpawnOptions
from tokenix.tests.sim.world import KINDS, World

FRAMES, SLOTS, BLOCKS = 20, 10, 30
STREAMS = 8
"""At a time. Each needs up to five pages: about twice what the frames hold."""

MOVED = ("swap.pages_out", "swap.pages_in", "swap.pages_store", "swap.pages_fetch")
MUST = ("ended", "swapon", *MOVED)
"""What a soak of the model has to have done at least once."""

PATIENCE_S = 120.0
LATE_S = 0.05

WORDS = (
    "bread", "rivers", "the moon", "a page fault", "winter", "iron", "chess", "the sea", "bees",
    "glass", "a clock", "Hamlet", "salt", "tides", "a bridge", "rain",
)  # fmt: skip
ASKS = ("Write about {}.", "Why is there {}?", "Tell me a story of {}.", "Explain {} to a child.")

Say = Callable[[str], None]


def soak_worlds(until_s: float, seed: int, say: Say) -> bool:
    """Random worlds until then. False after the first that ends badly."""
    done: Counter[str] = Counter()
    while time.monotonic() < until_s:
        for name, draw in KINDS.items():
            try:
                World(seed, draw=draw).run()
            except AssertionError as why:
                say(str(why))
                return False
            done[name or "any"] += 1
        seed += 1
    must = [name or "any" for name in KINDS]
    say(f"worlds: {', '.join(f'{count} {name}' for name, count in done.items())}")
    return did_enough("worlds", done, must, say)


def did_enough(half: str, did: Mapping[str, int], must: Sequence[str], say: Say) -> bool:
    """Whether all of it was done at least once. If not, nothing is shown, and that is said."""
    missing = [what for what in must if not did.get(what)]
    if missing:
        say(f"{half}: there was no time for {', '.join(missing)}; nothing is shown: more --seconds")
    return not missing


class Mishaps(Faults):
    """Copies between the tiers fail, are late or change a bit, by chance."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self.done: Counter[str] = Counter()

    def draw(self, what: str, rate: float) -> bool:
        with self._lock:
            struck = self._chance.random() < rate
            self.done[what] += struck
        return struck

    def before(self, command: Command) -> str | None:
        kind = type(command).__name__.lower()
        if not isinstance(command, CopyOut | CopyIn | Store | Fetch):
            return None
        if self.draw(f"late {kind}", 0.05):
            time.sleep(LATE_S)
        return "by chance" if self.draw(f"failed {kind}", 0.05) else None

    def published(self, page: PageOut, data: Array) -> None:
        if self.draw("changed slot", 0.03):
            data[self._chance.randrange(len(data))] ^= 1

    def pwritev(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if self.draw("failed write", 0.02):
            raise OSError(5, "Input/output error, by chance")
        return super().pwritev(fd, buffers, offset)

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        read = super().preadv(fd, buffers, offset)
        if self.draw("changed block", 0.03):
            buffers[0][0] ^= 1
        return read


class ModelSoak:
    """Streams of the real model in three tiers, held against what each says when it is alone."""

    def __init__(self, seed: int, say: Say) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.say = say
        self.did: Counter[str] = Counter()
        self.mishaps = Mishaps(seed)
        self.expected: dict[str, list[int]] = {}
        self.living: dict[Pid, tuple[str, list[int]]] = {}
        """pid -> (its case, what it has said)."""
        self.inherited: dict[Pid, int] = {}
        """Of forks: tokens that the parent had said."""

    def run(self, until_s: float) -> bool:
        """Until then, and for as much longer as it takes to hear each stream alone."""
        patient = {f"target_{qos}_s": 3600.0 for qos in ("interactive", "stream", "batch", "idle")}
        params = Params(sink_held_s=0.0, sink_low_share=0.4, sink_high_share=0.5, poison=True)
        began_s = time.monotonic()
        with tokenix.boot(device_pages=FRAMES, host_pages=0, tunables=patient) as k:
            for number in range(2 * len(WORDS)):
                case = self._case(number)
                pid = k.spawn(self._prompt(case), **self._options(case))
                self.expected[case] = self._rest(k, pid)
        with (
            faulty(self.mishaps),
            tempfile.TemporaryDirectory() as directory,
            tokenix.boot(
                device_pages=FRAMES, host_pages=SLOTS, tunables=patient, params=params
            ) as k,
        ):
            alone_s = time.monotonic() - began_s
            good = self._soak(k, Path(directory), until_s + alone_s)
            stats = k.vmstat()
        for name in MOVED:
            self.did[name] = int(stats[name])
        for counts in (self.did, self.mishaps.done):
            self.say("model: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
        return good and did_enough("model", self.did, MUST, self.say)

    def _soak(self, k: Syscalls, directory: Path, until_s: float) -> bool:
        size_bytes = BLOCKS * k.machine.kernel.info.frame_bytes
        acts = [self._read] * 6 + [self._stop] * 2 + [self._go_on] * 2 + [self._fork, self._kill]
        on = False
        while True:
            over = time.monotonic() >= until_s
            if over and not self.living:
                return self._check_empty(k)
            while not over and len(self.living) < STREAMS:
                self._spawn(k)
            if not on or self.chance.random() < 0.01:
                on = self._change_file(k, on, directory, size_bytes)
            pid = self.chance.choice(list(self.living))
            if over:
                k.kill(pid, tokenix.SIGCONT)
            act = self._read if over else self.chance.choice(acts)
            if not act(k, pid):
                return False

    def _change_file(self, k: Syscalls, on: bool, directory: Path, size_bytes: int) -> bool:
        """It goes, or another comes, if the disk does not fail just then. Whether there is one."""
        try:
            if on:
                k.swapoff()
            else:
                k.swapon(str(directory), size_bytes)
        except OSError as why:
            assert "the disk fails" in str(why), why
            self.did["swapon failed"] += 1
            return on
        self.did["swapoff" if on else "swapon"] += 1
        assert not list(directory.iterdir()), "the file has no name"
        return not on

    # ---- what happens to a stream ----

    def _spawn(self, k: Syscalls) -> None:
        case = self.chance.choice(list(self.expected))
        self.living[k.spawn(self._prompt(case), **self._options(case))] = (case, [])
        self.did["spawned"] += 1

    def _read(self, k: Syscalls, pid: Pid) -> bool:
        """A few tokens, or none if it is stopped. False if they are wrong."""
        case, said = self.living[pid]
        held = "signal" in k.stat(pid).held
        result = k.read(pid, self.chance.randint(1, 8), block=not held, timeout_s=PATIENCE_S)
        said += [output.token for output in result.outputs]
        expected = self.expected[case]
        if said != expected[: len(said)] or (result.eof and said != expected):
            self.say(f"pid {pid}, case {case!r}: it said {said}, not {expected}: {result.error}")
            return False
        if result.eof:
            k.wait(pid)
            del self.living[pid]
            self.did["ended"] += 1
        return True

    def _stop(self, k: Syscalls, pid: Pid) -> bool:
        k.kill(pid, tokenix.SIGSTOP)
        self.did["stopped"] += 1
        return True

    def _go_on(self, k: Syscalls, pid: Pid) -> bool:
        k.kill(pid, tokenix.SIGCONT)
        return True

    def _fork(self, k: Syscalls, pid: Pid) -> bool:
        """The child of a greedy stream says what its parent would have said."""
        case, _ = self.living[pid]
        held = "signal" in k.stat(pid).held
        if len(self.living) > STREAMS + 2 or not held or "seeded" in case:
            return True
        known = self.inherited.get(pid, 0) + k.stat(pid).output_tokens
        if known < len(self.expected[case]):
            (child,) = k.fork(pid)
            self.living[child] = (case, self.expected[case][:known])
            self.inherited[child] = known
            self.did["forked"] += 1
        return True

    def _kill(self, k: Syscalls, pid: Pid) -> bool:
        k.kill(pid, tokenix.SIGKILL)
        k.wait(pid)
        del self.living[pid]
        self.did["killed"] += 1
        return True

    # ---- cases ----

    def _case(self, number: int) -> str:
        word, ask = WORDS[number % len(WORDS)], self.chance.choice(ASKS)
        return f"{ask.format(word)} {'seeded' if number % 2 else 'greedy'} {number}"

    def _prompt(self, case: str) -> str:
        return case.rsplit(" ", 2)[0]

    def _options(self, case: str) -> SpawnOptions:
        number = int(case.rsplit(" ", 1)[1])
        options: SpawnOptions = {"max_tokens": 16 + number % 32, "ignore_eos": True}
        if "seeded" in case:
            options |= {"temperature": 0.8, "top_p": 0.95, "seed": number}
        return options

    def _rest(self, k: Syscalls, pid: Pid) -> list[int]:
        said: list[int] = []
        while True:
            result = k.read(pid, timeout_s=PATIENCE_S)
            said += [output.token for output in result.outputs]
            if result.eof:
                k.wait(pid)
                return said

    def _check_empty(self, k: Syscalls) -> bool:
        """Nothing is left, and each tier's books are right."""
        stats = k.vmstat()
        left = {name: n for name, n in stats.items() if name.startswith("processes.") and n}
        whole = stats["frames.free"] + stats["frames.cached"] == FRAMES
        for tier in ("host", "disk"):
            gone = stats[f"{tier}.returned"] + stats[f"{tier}.dropped"]
            whole &= stats[f"{tier}.written"] == gone + stats[f"{tier}.valid"]
        if left or not whole:
            self.say(f"left over: {left}; {stats}")
        return whole and not left


def soak_model(until_s: float, seed: int, say: Say) -> bool:
    """The real model until then. False at the first difference. The same calls are made again with
    the same seed, but threads and the disk meet otherwise each time."""
    try:
        if ModelSoak(seed, say).run(until_s):
            return True
    except Exception as why:
        say(f"{type(why).__name__}: {why}")
    say(f"again: python -m tokenix.tests.soak --only model --seed {seed}")
    return False


@contextmanager
def faulty(faults: Faults) -> Iterator[None]:
    """Machines that are booted inside have these faults."""
    from tokenix.drivers.cpu import device

    plain: Any = device.CpuDevice
    made: Any = partial(plain, faults=faults)
    device.CpuDevice = made  # type: ignore[misc]
    try:
        yield
    finally:
        device.CpuDevice = plain  # type: ignore[misc]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tokenix.tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", choices=["worlds", "model"], default=None)
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 40) if options.seed is None else options.seed
    halves = [options.only] if options.only else ["worlds", "model"]
    begun_s = time.monotonic()

    def say(line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - begun_s:7.1f} s  {line}\n")
        sys.stdout.flush()

    for number, half in enumerate(halves, 1):
        until_s = begun_s + options.seconds * number / len(halves)
        say(f"{half}, seed {seed}")
        if half == "worlds":
            good = soak_worlds(until_s, seed, say)
        else:
            good = soak_model(until_s, seed, say)
        if not good:
            return 1
    say("no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
