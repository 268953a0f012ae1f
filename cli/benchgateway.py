"""`tokenix bench gateway`: what a streamed token costs over HTTP."""

import json as jsonlib
from typing import Annotated

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.checks import COUNT
from tokenix.cli.status import OK


def gateway(
    *,
    streams: Annotated[int, Parameter(validator=COUNT, help="Clients at once.")] = 32,
    json: Annotated[bool, Parameter(name="--json", help="Print JSON.")] = False,
) -> int:
    """What a streamed token costs the HTTP gateway."""
    from tokenix.bench import gateway as measuring

    report = measuring.measure(streams)
    if json:
        stdout.write(jsonlib.dumps(report.as_json(), indent=2) + "\n")
        return OK
    stdout.write(
        f"{report.streams} streams, {report.rate:.0f} tokens a second\n"
        f"gateway   {report.gateway_us:.1f} us of processor time a token\n"
        f"bare ASGI {report.echo_us:.1f} us an event\n"
        f"ratio     {report.ratio:.2f}\n"
    )
    return OK
