"""Suspended and resumed, once or often, in one kernel or across restarts: nobody notices."""

import errno
import random
from typing import Any

import pytest

from tokenix.drivers.sampling import SamplingParams
from tokenix.drivers.sim import CostModel, expected_tokens
from tokenix.kernel import audit
from tokenix.kernel.answers import ImageInfo
from tokenix.kernel.calls import (
    Images,
    Kill,
    Principal,
    Read,
    Resume,
    Signal,
    Spawn,
    Stat,
    Suspend,
    Swapon,
    UnlinkImage,
    Wait,
    Write,
)
from tokenix.kernel.params import Params
from tokenix.kernel.state import State
from tokenix.mm.ids import Pid
from tokenix.sched.entity import Qos, Reader, ReaderKind
from tokenix.sched.plan import Pause, PauseMode, Plan
from tokenix.sched.view import MemoryView
from tokenix.tests.images.lab import Heard, Words, answer, ask, boot, reboot, refusal
from tokenix.tests.rude import force_pauses
from tokenix.tests.sim.machine import SimMachine

PROMPT = tuple(range(40, 71))
RED, BLUE = Principal("red"), Principal("blue")
SAMPLINGS = {
    "greedy": SamplingParams(),
    "seeded": SamplingParams(temperature=0.9, top_k=30, seed=5),
    "penalties": SamplingParams(
        temperature=0.7, seed=6, repetition_penalty=1.3, presence_penalty=0.4,
        frequency_penalty=0.2,
    ),
    "logprobs": SamplingParams(logprobs=3, logit_bias=((7, 1.5),)),
}  # fmt: skip


def run_out(machine: SimMachine, pid: Pid, heard: Heard) -> Heard:
    """To the end, read as a whole."""
    machine.run()
    heard.take(machine, pid)
    machine.call(Wait(pid))
    return heard


def undisturbed(**options: Any) -> Heard:
    machine = boot()
    return run_out(machine, machine.call(Spawn(PROMPT, **options)), Heard.nothing())


def suspend(machine: SimMachine, pid: Pid, name: str = "it") -> ImageInfo:
    info = ask(machine, Suspend(pid, name))
    assert machine.process(pid).exit_reason.value == "suspended"
    assert machine.call(Wait(pid)).reason.value == "suspended"
    return info


# ---- the same tokens ----


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_drawn_is_what_would_have_been_drawn(
    sampling: SamplingParams, restarts: bool
) -> None:
    """Suspended every few tokens."""
    options = {"sampling": sampling, "max_tokens": 40, "min_tokens": 5}
    heard, machine = Heard.nothing(), boot()
    pid = machine.call(Spawn(PROMPT, text=Words(), **options))
    lives = 0
    while machine.process(pid).output_tokens < 30:
        machine.run(until_s=machine.now_s + 0.03)
        heard.take(machine, pid)
        info = suspend(machine, pid)
        assert info == ImageInfo("it", "default", info.size_bytes) and info.size_bytes > 0
        audit.check_idle(machine.kernel)
        lives += 1
        machine = reboot(machine) if restarts else machine
        pid = ask(machine, Resume("it"))
    assert lives >= 3
    assert run_out(machine, pid, heard) == undisturbed(text=Words(), **options)
    assert machine.kernel.images.stats.pages_lost == 0
    assert not machine.device.images.files


CROWDED = Params(
    poison=True, sink_low_share=0.5, sink_high_share=0.5, sink_lead_s=0.01, sink_held_s=0.05
)


def crowd(moment: int) -> tuple[SimMachine, Pid]:
    """Processes that are short of memory and paused all the time; one of them, a while later."""
    slow = CostModel(in_page_s=2e-3, out_page_s=2e-3, prefill_token_s=1e-3)
    machine = boot(frames=24, host_slots=14, params=CROWDED, cost=slow)
    kernel = machine.kernel
    chance, decide = random.Random(moment), kernel.scheduler.plan

    def plan(memory: MemoryView, now_s: float) -> Plan:
        made, ready = decide(memory, now_s), kernel.scheduler.ready
        victims = [pid for pid in ready if chance.random() < 0.2]
        victims = [pid for pid in victims if pid not in {pause.pid for pause in made.pause}]
        extra = [Pause(pid, PauseMode.SWAP, "forced") for pid in victims]
        return force_pauses(made, extra, now_s) if extra else made

    kernel.scheduler.plan = plan  # type: ignore[method-assign]
    kernel.memory.restore = "swap-in"
    ask(machine, Swapon("/", 40 * kernel.info.frame_bytes))
    pids = [machine.call(Spawn(PROMPT[n:], max_tokens=24, qos=Qos.BATCH)) for n in range(5)]
    for _ in range(moment):
        if not machine.advance():
            break
    living = [pid for pid in pids if pid in kernel.processes]
    return machine, living[moment % len(living)] if living else pids[0]


def test_at_any_moment_and_in_any_state() -> None:
    """Also on the way out, in, and up from the swap file."""
    states: dict[str, int] = {}
    for moment in range(0, 600, 3):
        machine, pid = crowd(moment)
        process = machine.process(pid)
        if process.exit_reason is not None:
            break
        state = process.state.value
        states[state] = states.get(state, 0) + 1
        try:
            ask(machine, Suspend(pid, "it"))
        except OSError as why:
            assert why.errno == errno.ESRCH, "it had ended by itself"
            continue
        audit.check(machine.kernel)
        machine = machine if moment % 2 else reboot(machine)
        heard = run_out(machine, ask(machine, Resume("it")), Heard.nothing())
        expected = expected_tokens(PROMPT[pid - 1 :], 24)
        assert [token for token, *_ in heard.outputs] == expected, f"moment {moment}, {state}"
    wanted = {"new", "running", "swapped", "swapping-in", "swapping-out", "fetching"}
    assert wanted <= set(states), states


def test_in_the_middle_of_a_prefill() -> None:
    slow = CostModel(prefill_token_s=2e-3)
    machine, prompt = boot(frames=300, host_slots=300, cost=slow), PROMPT * 30
    pid = machine.call(Spawn(prompt, max_tokens=5, qos=Qos.BATCH))
    process = machine.process(pid)
    while not process.space.computed:
        machine.advance()
    assert process.space.computed < len(prompt)
    suspend(machine, pid)
    after = reboot(machine, frames=300, host_slots=300, cost=slow)
    heard = run_out(after, ask(after, Resume("it")), Heard.nothing())
    assert [token for token, *_ in heard.outputs] == expected_tokens(prompt, 5)
    assert after.kernel.counters.computed_tokens < len(prompt), "what was there was used"


def test_pages_come_back_and_are_not_computed_again() -> None:
    machine = boot()
    pid = machine.call(Spawn(PROMPT, max_tokens=30))
    machine.run(until_s=0.05)
    suspend(machine, pid)
    after = reboot(machine)
    after.kernel.memory.restore = "swap-in"
    pid = ask(after, Resume("it"))
    (back,) = (dict(e.detail) for e in after.kernel.trace.since(0, 99, pid) if e.kind == "revive")
    assert back["computed"] == back["tokens"] - 1, "the partly written page came too"
    after.run()
    assert after.kernel.counters.recomputed_tokens == 0
    assert after.call(Wait(pid)).rusage.recomputed_tokens == 0


def test_pages_that_are_cached_are_not_read_again() -> None:
    machine = boot()
    pid = machine.call(Spawn(PROMPT, max_tokens=30))
    machine.run(until_s=0.05)
    suspend(machine, pid)
    machine.kernel.memory.restore = "swap-in"
    pid = ask(machine, Resume("it"))
    loads = [e for e in machine.kernel.trace.since(0, 999) if e.kind == "revive"]
    assert dict(loads[0].detail)["lost"] == 0
    machine.run()
    assert machine.call(Wait(pid)).rusage.recomputed_tokens == 0


def test_without_a_host_tier_the_tokens_suffice() -> None:
    machine = boot(host_slots=0)
    pid = machine.call(Spawn(PROMPT, max_tokens=30))
    machine.run(until_s=0.05)
    suspend(machine, pid)
    pid = ask(machine, Resume("it"))
    heard = run_out(machine, pid, Heard.nothing())
    assert heard.outputs == undisturbed(max_tokens=30).outputs


def test_pages_of_another_size_are_computed_again() -> None:
    machine = boot(page_tokens=4)
    pid = machine.call(Spawn(PROMPT, max_tokens=30))
    machine.run(until_s=0.05)
    suspend(machine, pid)
    after = reboot(machine, page_tokens=8)
    heard = run_out(after, ask(after, Resume("it")), Heard.nothing())
    assert heard.outputs == undisturbed(max_tokens=30).outputs
    assert after.kernel.images.stats.pages_lost > 0


# ---- output and input ----


@pytest.mark.parametrize("taken", [0, 3, 1 << 30])
def test_unread_output_is_read_after_the_resume_once(taken: int) -> None:
    machine, heard = boot(), Heard.nothing()
    pid = machine.call(Spawn(PROMPT, max_tokens=30, text=Words()))
    machine.run(until_s=0.06)
    heard.take(machine, pid, taken)
    ask(machine, Suspend(pid, "it"))
    end = machine.call(Read(pid))
    assert end.eof and end.reason.value == "suspended" and not end.outputs
    assert end.turn_ended is not None and not end.turn_ended.tail, "what was held back stays so"
    with pytest.raises(OSError, match="read to its end"):
        machine.call(Read(pid))
    after = reboot(machine)
    run_out(after, ask(after, Resume("it")), heard)
    assert heard == undisturbed(max_tokens=30, text=Words())


def test_a_full_pipe_stays_full() -> None:
    params = Params(poison=True, pipe_tokens=4)
    machine, heard = boot(params=params), Heard.nothing()
    pid = machine.call(Spawn(PROMPT, max_tokens=9))
    machine.run(until_s=1.0)
    suspend(machine, pid)
    after = reboot(machine, params=params)
    pid = ask(after, Resume("it"))
    assert after.call(Stat(pid)).held == ("pipe",)
    while not heard.reason:
        after.run(until_s=after.now_s + 0.5)
        heard.take(after, pid)
    assert heard.outputs == undisturbed(max_tokens=9).outputs


def test_a_blocked_reader_is_told_the_end() -> None:
    machine = boot()
    pid = machine.call(Spawn(PROMPT, max_tokens=30))
    machine.run(until_s=0.03)
    machine.call(Kill(pid, Signal.STOP))
    machine.run(until_s=0.1)
    machine.call(Read(pid, block=False))
    call = machine.start(Read(pid))
    suspend_call = machine.start(Suspend(pid, "it"))
    assert answer(machine, call).reason.value == "suspended"
    assert answer(machine, suspend_call).name == "it"


def dialogue(breaks: bool) -> Heard:
    """Three turns; with `breaks` each is suspended in its middle and behind its end."""
    machine, heard = boot(), Heard.nothing()
    pid = machine.call(Spawn(PROMPT, max_tokens=10, keep_open=True, text=Words()))
    for turn in range(3):
        if turn:
            machine.call(Write(pid, (turn, 2, 3), separator=(99,)))
        for wait_s in (0.03, 2.0):
            machine.run(until_s=machine.now_s + wait_s)
            heard.take(machine, pid, 2 if breaks else 1 << 30)
            if breaks:
                suspend(machine, pid)
                machine = reboot(machine)
                pid = ask(machine, Resume("it"))
        heard.take(machine, pid)
    machine.call(Write(pid, eof=True))
    return run_out(machine, pid, heard)


def test_an_open_dialogue_goes_on() -> None:
    told = dialogue(breaks=True)
    assert told == dialogue(breaks=False) and len(told.ends) == 3 and told.reason == "length"


def test_queued_input_is_not_lost() -> None:
    machine, heard = boot(), Heard.nothing()
    pid = machine.call(Spawn(PROMPT, max_tokens=20, keep_open=True))
    machine.call(Write(pid, (5, 6, 7)))
    machine.run(until_s=0.03)
    suspend(machine, pid)
    after = reboot(machine)
    pid = ask(after, Resume("it"))
    after.call(Write(pid, (8,), eof=True))
    run_out(after, pid, heard)
    alone, expected = boot(), Heard.nothing()
    pid = alone.call(Spawn(PROMPT, max_tokens=20, keep_open=True))
    alone.call(Write(pid, (5, 6, 7, 8), eof=True))
    assert heard.outputs == run_out(alone, pid, expected).outputs and len(heard.ends) == 2


# ---- what else a process has ----


def test_limits_names_and_usage_come_along() -> None:
    machine = boot()
    options: dict[str, Any] = {
        "max_tokens": 30, "max_pages": 20, "deadline_s": 50.0, "nice": 3, "qos": Qos.BATCH,
        "reader": Reader(ReaderKind.MEASURED, 7.0), "name": "a tale", "ignore_eos": True,
        "stop_tokens": (250,),
    }  # fmt: skip
    pid = machine.call(Spawn(PROMPT, **options), RED)
    machine.run(until_s=0.05)
    before, was = machine.call(Stat(pid)), machine.process(pid)
    ask(machine, Suspend(pid, "it"), RED)
    after = reboot(machine)
    after.run(until_s=100.0)
    pid = ask(after, Resume("it"), RED)
    now, process = after.call(Stat(pid), RED), after.process(pid)
    for field in ("tenant", "name", "qos", "nice", "prompt_tokens"):
        assert getattr(now, field) == getattr(before, field), field
    assert (process.max_tokens, process.max_pages) == (30, 20)
    assert process.stop_tokens == was.stop_tokens and process.entity.reader == was.entity.reader
    assert process.deadline_s == pytest.approx(after.now_s + 50.0, abs=0.2), "its clock stood still"
    assert now.output_tokens >= before.output_tokens > 0
    assert now.rusage.ttft_s == before.rusage.ttft_s
    after.run()
    usage = after.call(Wait(pid)).rusage
    assert usage.output_tokens == 30 and usage.total_s < 5


def test_a_stopped_process_comes_back_stopped() -> None:
    machine = boot()
    pid = machine.call(Spawn(PROMPT, max_tokens=30))
    machine.run(until_s=0.03)
    machine.call(Kill(pid, Signal.STOP))
    suspend(machine, pid)
    pid = ask(machine, Resume("it"))
    machine.run(until_s=machine.now_s + 5)
    assert machine.call(Stat(pid)).held == ("signal",)
    machine.call(Kill(pid, Signal.CONT))
    heard = run_out(machine, pid, Heard.nothing())
    assert heard.outputs == undisturbed(max_tokens=30).outputs


# ---- names and tenants ----


def test_images_are_listed_and_removed() -> None:
    machine = boot()
    for who, name in ((RED, "b"), (RED, "a b"), (BLUE, "b")):
        pid = machine.call(Spawn(PROMPT, max_tokens=9), who)
        ask(machine, Suspend(pid, name), who)
    after = reboot(machine)
    assert [info.name for info in after.call(Images(), RED)] == ["a b", "b"]
    assert [(i.tenant, i.name) for i in after.call(Images())] == [
        ("blue", "b"), ("red", "a b"), ("red", "b"),
    ]  # fmt: skip
    ask(after, UnlinkImage("b"), RED)
    assert [info.name for info in after.call(Images(), RED)] == ["a b"]
    assert refusal(after, Resume("b"), RED) == errno.ENOENT
    assert after.call(Stat(ask(after, Resume("b"), BLUE)), BLUE).tenant == "blue"


def test_tenants_do_not_see_each_others() -> None:
    machine = boot()
    pid = machine.call(Spawn(PROMPT, max_tokens=9), RED)
    assert refusal(machine, Suspend(pid, "x"), BLUE) == errno.ESRCH
    ask(machine, Suspend(pid, "x"))  # root may, and it stays red's
    assert machine.call(Images(), BLUE) == ()
    for request in (Resume("x"), UnlinkImage("x"), Resume("../t-red/x"), Resume("t-red/x")):
        assert refusal(machine, request, BLUE) in (errno.ENOENT, errno.EINVAL)
    files = machine.device.images.files
    files["saved/t-blue/x.img"] = files["saved/t-red/x.img"]
    assert refusal(machine, Resume("x"), BLUE) == errno.EBADMSG, "a copy is not theirs either"
    assert ask(machine, Resume("x"), RED)


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".x", "a/b", "/", "x" * 201, "ä" * 40, "\udc80", None, 3]
)
def test_names_that_are_none(name: object) -> None:
    machine = boot()
    pid = machine.call(Spawn(PROMPT, max_tokens=9))
    for request in (Suspend(pid, name), Resume(name), UnlinkImage(name)):  # type: ignore[arg-type]
        assert refusal(machine, request) == errno.EINVAL


def test_a_name_is_used_once() -> None:
    machine = boot()
    pids = [machine.call(Spawn(PROMPT[n:], max_tokens=30)) for n in range(2)]
    call = machine.start(Suspend(pids[0], "it"))
    assert refusal(machine, Suspend(pids[1], "it")) == errno.EBUSY
    assert refusal(machine, Resume("it")) == errno.EBUSY
    answer(machine, call)
    assert refusal(machine, Suspend(pids[1], "it")) == errno.EEXIST
    assert refusal(machine, Suspend(pids[0], "other")) == errno.ESRCH


def test_without_a_directory_it_is_said_what_to_do() -> None:
    machine = SimMachine(16, 16)
    pid = machine.call(Spawn(PROMPT, max_tokens=9))
    for request in (Suspend(pid, "x"), Resume("x"), UnlinkImage("x")):
        with pytest.raises(OSError, match="boot with image_dir") as why:
            machine.call(request)
        assert why.value.errno == errno.EINVAL
    assert machine.call(Images()) == ()


def test_resuming_is_admitted_as_a_spawn_is() -> None:
    machine = boot(frames=32)
    pid = machine.call(Spawn(PROMPT, max_tokens=60))
    machine.run(until_s=0.03)
    suspend(machine, pid)
    assert refusal(reboot(machine, frames=16), Resume("it")) == errno.E2BIG
    assert refusal(reboot(machine, vocab=64), Resume("it")) == errno.EINVAL
    crowded = reboot(machine, params=Params(max_processes=1, max_zombies=1))
    crowded.call(Spawn(PROMPT, max_tokens=9))
    assert refusal(crowded, Resume("it")) == errno.EAGAIN
    assert len(machine.device.images.files) == 1, "it stays until it is resumed"
    assert ask(reboot(machine), Resume("it"))


def test_a_killed_process_leaves_its_full_pages_in_the_cache() -> None:
    machine = boot()
    pid = machine.call(Spawn(PROMPT, max_tokens=30))
    machine.run(until_s=0.06)
    process = machine.process(pid)
    tokens, full = tuple(process.tokens), process.space.computed // 4 * 4
    assert full > len(PROMPT), "output pages too"
    machine.call(Kill(pid, Signal.KILL))
    pid = machine.call(Spawn(tokens, max_tokens=4))
    machine.run()
    assert machine.call(Wait(pid)).rusage.cached_tokens == full


def test_states_are_left_in_order() -> None:
    machine = boot()
    pid = machine.call(Spawn(PROMPT, max_tokens=30))
    machine.run(until_s=0.03)
    ask(machine, Suspend(pid, "it"))
    assert machine.process(pid).state is State.ZOMBIE
    kinds = [event.kind for event in machine.kernel.trace.since(0, 999, pid)]
    assert kinds.index("suspend") < kinds.index("pause") < kinds.index("save") < kinds.index("exit")
