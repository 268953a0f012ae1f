"""Hypothesis state machines that are the same in every run."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def run(
    machine: type[RuleBasedStateMachine], examples: int, steps: int, shrink: bool = True
) -> None:
    """Play `examples` stories of at most `steps` rules each; `shrink`: a failing one is made short
    before it is told."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            derandomize=True,
            database=None,
            deadline=None,
            max_examples=examples,
            stateful_step_count=steps,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
