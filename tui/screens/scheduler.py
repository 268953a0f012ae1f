"""The scheduler: levels as lanes, the plan, decisions with their reasons, what steers it."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from tokenix.syscalls.policies import POLICIES
from tokenix.syscalls.types import PlanReport
from tokenix.tui.model import lanes, outlook, usage
from tokenix.tui.model.gauges import states
from tokenix.tui.model.lanes import Lanes
from tokenix.tui.screens.controls import Controls
from tokenix.tui.screens.dialogs import Choice
from tokenix.tui.screens.page import Page, titled
from tokenix.tui.snapshot import Snapshot
from tokenix.tui.widgets.words import Words

TITLE, OWN = (
    "Levels: who is due stands above, who is ahead below",
    "Levels and plan: of your own only",
)


class SchedulerScreen(Page):
    DEFAULT_CSS = """
    SchedulerScreen #lanes { height: 15; }
    SchedulerScreen .columns { height: 1fr; }
    SchedulerScreen #plan { width: 1fr; }
    SchedulerScreen #side { width: 1.2fr; }
    SchedulerScreen #dials { height: 12; }
    SchedulerScreen.small #lanes { height: 10; }
    SchedulerScreen.small #plan { width: 1.1fr; margin-right: 1; }
    SchedulerScreen.small #side { width: 1fr; }
    SchedulerScreen.small #dials { height: 1fr; }
    SchedulerScreen.small #decisions { display: none; }
    SchedulerScreen.small.decided #decisions { display: block; }
    SchedulerScreen.small.decided #plan, SchedulerScreen.small.decided #dials { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "policy", "Policy", id="scheduler.policy"),
        Binding("e,enter", "controls", "Control variables", id="scheduler.controls"),
        Binding("d", "decisions", "Decisions", id="scheduler.decisions"),
        Binding("space", "app.freeze", "Freeze", id="scheduler.freeze"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._lanes = Lanes()

    def body(self) -> ComposeResult:
        yield titled(Words(id="lanes"), TITLE)
        with Horizontal(classes="columns"):
            yield titled(Words(id="plan"), "Plan")
            with Vertical(id="side"):
                yield titled(Words(id="dials"), "What steers it")
                yield titled(Words(id="decisions"), "Decisions and their reasons")

    def show(self, look: Snapshot) -> None:
        self._lanes.take(look)
        found = self._lanes.lanes
        hidden = not look.processes and any(states(look.figures).values())
        self._words("lanes").border_title = OWN if hidden else TITLE
        self._words("lanes").show(lambda width, height: lanes.lines(found, width, height))
        dials, measured = outlook.dials(look, self.top.history), outlook.rates(look.controls)
        self._words("dials").show(
            lambda width, height: [*(outlook.dial(dial, width) for dial in dials), measured]
        )

    def question(self) -> None:
        self.inquire("plan", lambda view: view.plan(), self._take_plan)

    def _take_plan(self, plan: PlanReport | OSError) -> None:
        if isinstance(plan, OSError):
            why = plan.strerror or str(plan)
            for name in ("plan", "decisions"):
                self._words(name).show(lambda width, height: usage.wrapped(why, width, height))
            return
        self._words("plan").border_subtitle = plan.policy
        self._words("plan").show(lambda width, height: outlook.plan_lines(plan, width, height))
        self._words("decisions").show(
            lambda width, height: outlook.decisions(plan.decisions, height)
        )

    def _words(self, name: str) -> Words:
        return self.query_one(f"#{name}", Words)

    # ---- keys ----

    def action_policy(self) -> None:
        look = self.top.snapshot
        if look is None or not self.top.may_act():
            return

        def chosen(name: str | None) -> None:
            if name is not None:
                self.top.act(f"the policy is {name}", lambda view: view.sysctl("policy", name))

        now = str(look.controls.get("policy", ""))
        self.app.push_screen(Choice("Policy", [(name, name) for name in POLICIES], now), chosen)

    def action_controls(self) -> None:
        look = self.top.snapshot
        if look is not None:
            self.app.push_screen(Controls(look.controls))

    def action_decisions(self) -> None:
        """Where room is short, in place of the plan."""
        self.toggle_class("decided")
