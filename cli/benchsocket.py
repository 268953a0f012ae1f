"""`tokenix bench socket`: its options and its table."""

import json as jsonlib
from typing import Annotated

from cyclopts import Parameter

from tokenix.cli import stdout
from tokenix.cli.checks import COUNT
from tokenix.cli.status import OK


def socket(
    *,
    streams: Annotated[
        int, Parameter(validator=COUNT, help="Streams whose tokens are counted.")
    ] = 256,
    crowd: Annotated[int, Parameter(validator=COUNT, help="Streams beside short requests.")] = 500,
    seconds: Annotated[
        int, Parameter(validator=COUNT, help="For so long short requests come, in each round.")
    ] = 5,
    json: Annotated[bool, Parameter(name="--json", help="Print JSON.")] = False,
) -> int:
    """What a streamed token costs at the socket, and what others feel of rude clients."""
    from tokenix.bench import border

    cost = border.measure(streams)
    beside = border.measure_crowd(crowd, float(seconds))
    if json:
        both = {"token": cost.as_json(), "crowd": beside.as_json()}
        stdout.write(jsonlib.dumps(both, indent=2) + "\n")
        return OK
    stdout.write(
        f"a streamed token: client {cost.client_us:.1f} us, server {cost.server_us:.1f} us on the "
        f"processor, {cost.ratio:.1f} times a bare asyncio message there and back\n"
        f"({cost.streams} streams over one connection, {cost.tokens} tokens a round)\n"
        f"first token of a short request: P50 {beside.beside_p50_ms:.0f} ms, P95 "
        f"{beside.beside_p95_ms:.0f} ms beside {beside.streams} streams of which a fifth does not "
        f"read or breaks off,\n{beside.ratio_p50:.2f} and {beside.ratio_p95:.2f} times what it is "
        f"without that fifth; at most {beside.most_unsent_bytes} bytes unsent\n"
    )
    return OK
