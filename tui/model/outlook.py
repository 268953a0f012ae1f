"""The scheduler in words: the pass that runs, who is next, who is due, what was decided; and what
steers it, each beside its bound."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from tokenix.cli.table import seconds
from tokenix.syscalls.types import Due, PlanReport, Queued, TraceEvent
from tokenix.tui.model.columns import count, lead_number
from tokenix.tui.model.history import History
from tokenix.tui.model.palette import CLASSES
from tokenix.tui.model.phrases import GAP, Piece, Pieces, meter
from tokenix.tui.snapshot import Snapshot

SOON_S: Final = 1.0
"""Who is due within this is about to come back."""
FULL_S: Final = 16.0
"""So much time until someone is due fills its bar."""
BAR, LONG_BAR = 8, 24
WATCHED: Final = ("interactive", "stream", "batch", "idle")


# ---- the plan ----


def runs(plan: PlanReport, width: int) -> list[Pieces]:
    """The pass in flight, or that there is none: two lines."""
    if plan.started_s is None:
        return [[("pass ", "muted"), ("none: nothing can run just now", "faint")], []]
    chunks = sum(tokens for _, tokens in plan.chunks)
    head: list[Piece] = [
        ("pass ", "muted"), (f"{plan.steps + 1}", "text"), GAP,
        (f"{len(plan.decodes)} ", "success!"), ("write a token", "muted"),
    ]  # fmt: skip
    if plan.chunks:
        head += [
            GAP, (f"{len(plan.chunks)} ", "warning!"),
            (f"compute {count(chunks)} of prompts", "muted"),
        ]  # fmt: skip
    who: list[Piece] = [("runs ", "muted")]
    room = width - 5
    for pid, tokens in (*plan.chunks, *((pid, 1) for pid in plan.decodes)):
        text = f"{pid} " if tokens == 1 else f"{pid}:{count(tokens)} "
        if len(text) > room - 2:
            who.append(("…", "muted"))
            break
        who.append((text, "success" if tokens == 1 else "warning"))
        room -= len(text)
    return [head, who]


def queued(found: Queued) -> list[Piece]:
    """`   31  stream    312 tokens  waited ████▌    0.8 of 1.0 s`"""
    share = found.waited_s / found.target_s if found.target_s > 0 else 0.0
    role = "error" if share > 1 else "warning" if share > 0.5 else "success"
    return [
        (f"{found.pid:>6} ", "warning"), (f"{CLASSES.get(found.qos, found.qos):<6}", "muted"),
        (f"{count(found.todo_tokens):>6}", "text"), (" tokens  ", "muted"),
        *meter(share, BAR, role), (f" {seconds(found.waited_s)}", "text"),
        (f" of {seconds(found.target_s)}", "faint"),
    ]  # fmt: skip


def due(found: Due) -> list[Piece]:
    """`    4  ███▌      2.3s   12 of 39 pages here`"""
    lead_s = found.lead_s
    if lead_s is None:
        when = [*meter(0.0, BAR, "faint"), (f"{'-':>7}", "muted")]
    else:
        role = "error" if lead_s < 0 else "warning" if lead_s < SOON_S else "primary"
        when = [*meter(lead_s / FULL_S, BAR, role), (f"{lead_number(lead_s):>7}", "text")]
    pieces: list[Piece] = [
        (f"{found.pid:>6} ", "primary"), *when,
        (f"{found.resident_pages:>5}", "text"), (f" of {found.pages} pages", "muted"),
    ]  # fmt: skip
    if found.file_pages:
        pieces.append((f", {found.file_pages} in the file", "accent"))
    return pieces


def plan_lines(plan: PlanReport, width: int, height: int) -> list[Pieces]:
    """The pass, who is next, and who is due, as far as there is room: each gets half of it, or what
    the other leaves."""
    lines = runs(plan, width)
    room = max(0, height - len(lines) - 2)
    next_rows = min(len(plan.waiting), max(room // 2, room - len(plan.due)))
    due_rows = min(len(plan.due), room - next_rows)
    lines.append(_head("next to get frames", len(plan.waiting), next_rows))
    lines += [queued(one) for one in plan.waiting[:next_rows]]
    lines.append(_head("paused, who is due first", len(plan.due), due_rows))
    lines += [due(one) for one in plan.due[:due_rows]]
    return lines[:height]


def _head(words: str, number: int, shown: int) -> Pieces:
    if not number:
        return [(words, "muted"), ("  nobody", "faint")]
    more = f", {shown} shown" if shown < number else ""
    return [(words, "muted"), (f"  {number}{more}", "text")]


def decision(event: TraceEvent) -> list[Piece]:
    """`   24.839   4 paused   for 6's return; lead 12.1s, 39 pages, all clean`"""
    facts = dict(event.detail)
    word, role = DECISIONS.get(event.kind, (event.kind, "text"))
    return [
        (f"{event.time_s:9.2f} ", "faint"), (f"{event.pid or '':>5} ", "text"),
        (f"{word:<9}", f"{role}!"), (_why(event.kind, facts), "muted"),
    ]  # fmt: skip


DECISIONS: Final[dict[str, tuple[str, str]]] = {
    "admit": ("admitted", "success"),
    "pause": ("paused", "primary"),
    "resume": ("resumed", "accent"),
    "pause-end": ("back", "success"),
    "fetch": ("fetched", "accent"),
    "exit": ("refused", "error"),
}
"""Kind of event -> word and role."""


def _why(kind: str, facts: Mapping[str, str | float]) -> str:
    lead_s = facts.get("lead_s")
    lead = f", lead {lead_number(float(lead_s))}" if lead_s is not None else ""
    match kind:
        case "pause":
            dirty = facts.get("dirty", 0)
            copied = f"{dirty} to copy" if dirty else "nothing to copy"
            return f"{facts.get('reason')}{lead}; {facts.get('pages')} pages, {copied}"
        case "pause-end":
            away_s = float(facts.get("paused_s", 0.0))
            return f"by {facts.get('way') or 'no copy'} after {seconds(away_s)}{lead}"
        case "admit":
            found = int(facts.get("computed", 0))
            known = f", {found} found" if found else ""
            return f"{facts.get('pages')} pages for {facts.get('tokens')} tokens{known}"
        case "resume":
            return f"{facts.get('pages')} pages by {facts.get('way') or 'no copy'}"
        case "fetch":
            return f"{facts.get('pages')} pages rise from the file"
        case _:
            return str(facts.get("error", ""))


# ---- what steers it ----


class Dial(NamedTuple):
    """A figure beside its bound."""

    name: str
    share: float | None
    """Of the bound, for the bar; None: it has none."""
    figure: str
    bound: str
    role: str


def dials(look: Snapshot, history: History) -> list[Dial]:
    """Controllers and what they listen to, each with its target."""
    figures, controls = look.figures, look.controls
    found = [*_first_tokens(history, controls), _working_set(figures), _eta(figures, controls)]
    found += [_seats(figures, controls), _free(figures), _pass(controls)]
    if figures.get("controller.pressure"):
        found.append(Dial("pressure", None, "yes", "no room", "error"))
    if str(controls.get("policy", "")) == "retract":
        ratio = figures.get("controller.new_token_ratio", 0.0)
        found.append(Dial("token ratio", ratio, f"{ratio:.2f}", "of outputs reserved", "primary"))
    return found


def _first_tokens(history: History, controls: Mapping[str, Any]) -> list[Dial]:
    found = []
    for qos in WATCHED:
        p95_s = history.first_token_s(0.95, qos)
        target_s = float(controls.get(f"sched.target_{qos}_s", 0.0))
        if p95_s is not None and target_s > 0:
            share = p95_s / target_s
            role = "error" if share > 1 else "warning" if share > 0.75 else "success"
            bound = f"target {seconds(target_s)}"
            found.append(Dial(f"P95 {CLASSES[qos]}", share, seconds(p95_s), bound, role))
    return found


def _working_set(figures: Mapping[str, float]) -> Dial:
    pages, total = figures.get("controller.working_set_pages", 0.0), figures.get("frames.total", 1)
    limit = figures.get("controller.eta", 1.0) * total
    share = pages / limit if limit else 0.0
    role = "warning" if share > 0.9 else "primary"
    return Dial("working set", share, count(pages), f"of {count(limit)} pages", role)


def _eta(figures: Mapping[str, float], controls: Mapping[str, Any]) -> Dial:
    eta, floor = figures.get("controller.eta", 1.0), float(controls.get("sched.eta_floor", 0.0))
    role = "success" if eta >= 1 else "warning"
    return Dial("eta", eta, f"{eta:.2f}", f"at least {floor:g}", role)


def _seats(figures: Mapping[str, float], controls: Mapping[str, Any]) -> Dial:
    taken = figures.get("queues.ready", 0.0) + figures.get("queues.moving", 0.0)
    most = float(controls.get("sched.max_running", 0.0))
    return Dial(
        "seats", taken / most if most else None, count(taken), f"of {count(most)}", "primary"
    )


def _free(figures: Mapping[str, float]) -> Dial:
    free, low = figures.get("frames.free", 0.0), figures.get("reclaim.low", 0.0)
    total = figures.get("frames.total", 1.0)
    role = "warning" if free < low else "success"
    bound = f"marks {count(low)}, {count(figures.get('reclaim.high', 0.0))}"
    return Dial("free frames", free / total, count(free), bound, role)


def _pass(controls: Mapping[str, Any]) -> Dial:
    step_s, limit_s = (
        float(controls.get(name, 0.0)) for name in ("rates.step_s", "sched.step_limit_s")
    )
    share = step_s / limit_s if limit_s else None
    return Dial("pass", share, f"{1e3 * step_s:.0f} ms", f"of {1e3 * limit_s:.0f} ms", "primary")


def dial(found: Dial, width: int) -> list[Piece]:
    """`working set  ━━━━━╸──     143  of 176 pages`, the bar as long as there is room."""
    cells = min(LONG_BAR, max(4, width - 34))
    meters = (
        meter(found.share, cells, found.role)
        if found.share is not None
        else [(" " * cells, "text")]
    )
    return [
        (f"{found.name:<12}", "muted"), *meters, (f"{found.figure:>7}", "text!"),
        (f"  {found.bound}", "muted"),
    ]  # fmt: skip


def rates(controls: Mapping[str, Any]) -> list[Piece]:
    """What the device was measured at."""
    return [
        ("a second  ", "muted"),
        (f"{float(controls.get('rates.steps_per_s', 0.0)):.1f}", "text"), (" passes, ", "muted"),
        (count(float(controls.get("rates.prefill_tokens_per_s", 0.0))), "text"),
        (" prefill", "muted"),
    ]  # fmt: skip


def decisions(events: Sequence[TraceEvent], height: int) -> list[Pieces]:
    """The latest, the newest below."""
    if not events:
        return [[("nothing was decided lately", "faint")]]
    return [decision(event) for event in events[-height:]]
