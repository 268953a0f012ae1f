"""The reader of a stream, seen from outside: when it needs each token, and when it had to wait.

    due(1) = t(1) + 1/rate            t(i): delivery of token i [s]
    due(i) = max(due(i-1), t(i-1)) + 1/rate

The reader begins at the first token and takes `rate` tokens a second. A late token shifts the
later deadlines, so one pause is one stall.
"""

from collections.abc import Sequence

STALL_TOLERANCE_S = 0.5
"""A token later than its deadline by more than this is a visible stall."""


def count_stalls(
    times_s: Sequence[float], tokens_per_s: float, tolerance_s: float = STALL_TOLERANCE_S
) -> int:
    """Visible stalls of a reader at `tokens_per_s` who gets its tokens at `times_s`, in order."""
    return sum(late_s > tolerance_s for late_s in lateness(times_s, tokens_per_s))


def lateness(times_s: Sequence[float], tokens_per_s: float) -> list[float]:
    """Seconds by which each token after the first is later than its deadline; negative: ahead."""
    assert tokens_per_s > 0, "a reader reads"
    late: list[float] = []
    due_s = 0.0
    for number, time_s in enumerate(times_s):
        if number:
            late.append(time_s - due_s)
            due_s = max(due_s, time_s)
        else:
            due_s = time_s
        due_s += 1.0 / tokens_per_s
    return late


def fluidity(
    times_s: Sequence[float], tokens_per_s: float, first_s: float, asked_s: float = 0.0
) -> float:
    """The fluidity index (Agrawal et al., "Etalon", 2024): the share of deadlines that were met.

    The first token is due `first_s` after `asked_s`, each further one 1/rate after the one before;
    what comes early leaves slack to those behind it. A late token misses one deadline for every
    1/rate that it is late begun, and the slack begins anew. 0 without a token.
    """
    assert tokens_per_s > 0 and first_s > 0, "a reader reads, and waits for something"
    due, missed = 0, 0
    slack_s, before_s = 0.0, asked_s
    for number, time_s in enumerate(times_s):
        deadline_s = 1.0 / tokens_per_s if number else first_s
        took_s, before_s = time_s - before_s, time_s
        if took_s <= deadline_s + slack_s:
            slack_s += deadline_s - took_s
            due += 1
        else:
            late = int((took_s - slack_s - deadline_s) // deadline_s) + 1
            due, missed, slack_s = due + late, missed + late, 0.0
    return 1.0 - missed / due if due else 0.0
