"""The commands, by name. The module of a command is imported when it is the one that runs."""

from cyclopts import App, CycloptsError, Group, Parameter

import tokenix
from tokenix.cli.commands import COMMANDS
from tokenix.cli.status import OK, UsageError
from tokenix.cli.stdout import StdoutClosed

app = App(
    name="tokenix",
    help="An operating-system kernel for LLM serving: requests are processes, KV pages are memory.",
    version=tokenix.__version__,
    version_flags=["--version", "-V"],
    help_format="plaintext",
    default_parameter=Parameter(negative=""),
    suppress_keyboard_interrupt=False,
)
for _group, _commands in COMMANDS.items():
    _section = Group.create_ordered(_group)
    for _name, _place in _commands.items():
        app.command(_place, name=_name, group=_section)


def dispatch(tokens: list[str]) -> int:
    """Run the command that the words of a command line name. Exit code. UsageError, and what the
    command raises."""
    if not tokens or tokens[0] in app.help_flags:
        for name in app:  # what a command says of itself is in its module
            app[name]
    if tokens[:1] == ["run"]:
        from tokenix.cli import asking

        tokens = asking.spell_out(tokens)
    elif tokens[:1] == ["kill"]:
        from tokenix.cli import signals

        tokens = signals.spell_out(tokens)
    try:
        command, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    except CycloptsError as problem:
        problem.verbose = False
        raise UsageError(f"{problem} (see tokenix --help)") from None
    except AssertionError as problem:  # limits say so what they are
        raise UsageError(f"limits that cannot be: {problem}") from None
    try:
        result = command(*bound.args, **bound.kwargs)
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # rich leaves so, with a code of its own
            raise StdoutClosed from None
        raise
    return result if isinstance(result, int) else OK
