"""`tokenix config`: the options of the daemon as they are, and where they come from."""

from dataclasses import fields, is_dataclass
from typing import Any

from cyclopts import App, Parameter

from tokenix.cli import stdout
from tokenix.cli.options import Json
from tokenix.cli.serve import DEFAULT, Config, Model, Options, sources
from tokenix.cli.status import OK
from tokenix.cli.table import printable, table
from tokenix.daemon.options import DEFAULT_MODEL
from tokenix.daemon.sources import config_path, usual_paths

config = App(
    name="config",
    help="Show the options of the daemon.",
    help_format="plaintext",
    default_parameter=Parameter(negative=""),
)


@config.command
def path(*, config: Config = None, json: Json = False) -> int:
    """Print the path of the file that is read, or where one would be."""
    found = config_path(config)
    if json:
        usual = [str(path) for path in usual_paths()]
        stdout.write_json({"path": found and str(found), "looked_for": usual})
    else:
        stdout.write(f"{found or usual_paths()[0]}\n")
    return OK


@config.command
def show(
    model: Model = DEFAULT_MODEL,
    *,
    config: Config = None,
    options: Options = DEFAULT,
    json: Json = False,
) -> int:
    """Show every option of `tokenix serve` with these flags, and where its value comes from.

    What serve would refuse of them is refused here too.
    """
    from tokenix.daemon.validity import check_options
    from tokenix.syscalls.wire.paths import socket_path

    check_options(socket_path(options.socket).expanduser().absolute(), options)
    values = {"model": model, **flat(options)}
    origins = {name: origin_of(name) for name in values}
    if json:
        stdout.write_json(
            {name: {"value": value, "from": origins[name]} for name, value in values.items()}
        )
        return OK
    rows = [(name, printable(shown(value)), origins[name]) for name, value in values.items()]
    stdout.write(table(("OPTION", "VALUE", "FROM"), rows, left=("OPTION", "VALUE")))
    return OK


show_app = config["show"]
show_app.config = (sources.apply,)


def flat(options: Any, prefix: str = "") -> dict[str, Any]:
    """Every option by its dotted name."""
    found: dict[str, Any] = {}
    for field in fields(options):
        value = getattr(options, field.name)
        if is_dataclass(value):
            found |= flat(value, f"{prefix}{field.name}.")
        else:
            found[prefix + field.name] = value
    return found


def origin_of(name: str) -> str:
    return sources.origins.get(name, "default")


def shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={shown(each)}" for key, each in value.items()) or "-"
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value is None or value == "" else str(value)
