"""A policy of the user's own, from a Python file: `FILE.py:NAME` where a policy is named."""

from pathlib import Path

from tokenix.sched.policies import POLICIES
from tokenix.sched.policy import Policy


def find_policy(named: str) -> str:
    """The key in POLICIES of a policy: a shipped one's name as it is; one of a file is put there
    under what it was named by. OSError, ValueError in one line."""
    if named in POLICIES:
        return named
    path, separator, name = named.rpartition(":")
    if not separator or not path.endswith(".py"):
        raise ValueError(
            f"no policy {named!r}; there are {', '.join(POLICIES)}, and FILE.py:NAME for your own"
        )
    made = _run(Path(path))
    policy = made.get(name)
    if not isinstance(policy, Policy):
        names = [key for key, value in made.items() if isinstance(value, Policy)]
        raise ValueError(f"{path} has no policy {name!r}; it has {', '.join(names) or 'none'}")
    POLICIES[named] = policy
    return named


def _run(path: Path) -> dict[str, object]:
    """What the file defines."""
    code = path.read_bytes()
    made: dict[str, object] = {"__name__": path.stem, "__file__": str(path)}
    try:
        exec(compile(code, str(path), "exec"), made)
    except Exception as why:
        raise ValueError(f"{path}: {type(why).__name__}: {why}") from why
    return made
