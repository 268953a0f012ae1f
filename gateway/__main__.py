"""`python -m tokenix.gateway`: reads its configuration, as JSON, from its standard input."""

import sys

import msgspec

import tokenix
from tokenix.gateway.config import GatewayConfig
from tokenix.gateway.logs import bridge_logging, close_log, open_log
from tokenix.gateway.server import serve
from tokenix.syscalls.aio import Syscalls


def main() -> None:
    """Serve. Exit status 2 for a configuration that makes no sense."""
    try:
        config = msgspec.json.decode(sys.stdin.buffer.read(), type=GatewayConfig)
    except msgspec.MsgspecError as why:
        sys.stderr.write(f"gateway: the configuration is not valid: {why}\n")
        sys.exit(2)
    bridge_logging(open_log(config.log_level, config.log_format), "warning")

    async def connect() -> Syscalls:
        return await tokenix.aio.connect(config.socket or None)

    try:
        serve(config, connect)
    finally:
        close_log()


if __name__ == "__main__":
    main()
