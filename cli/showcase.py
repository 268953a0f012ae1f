"""`tokenix demo`: its options."""

from typing import Annotated

from cyclopts import Parameter

from tokenix.cli.options import Json


def demo(
    *,
    policy: Annotated[
        list[str] | None, Parameter(help="fcfs, retract, progress; may be repeated.")
    ] = None,
    seed: Annotated[int, Parameter(help="Seed of the arrivals.")] = 1,
    quick: Annotated[bool, Parameter(help="A smaller load, for a first look.")] = False,
    model: Annotated[str, Parameter(help="Model to run it on.")] = "smollm2",
    driver: Annotated[str, Parameter(help="Device driver: cpu or cuda.")] = "cpu",
    json: Json = False,
) -> int:
    """Show what the scheduler does: the same load on the same model under three policies."""
    from tokenix.cli.demo import demo as show

    return show(model, tuple(policy or ()), seed, quick, driver, json)
