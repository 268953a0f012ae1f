"""`python -m tokenix.gateway`: reads its configuration, as JSON, from its standard input."""

import logging
import sys

import msgspec
import structlog

import tokenix
from tokenix.gateway.config import GatewayConfig
from tokenix.gateway.server import serve
from tokenix.syscalls.aio import Syscalls


def main() -> None:
    """Serve. Exit status 2 for a configuration that makes no sense."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    try:
        config = msgspec.json.decode(sys.stdin.buffer.read(), type=GatewayConfig)
    except msgspec.MsgspecError as why:
        sys.stderr.write(f"gateway: the configuration is not valid: {why}\n")
        sys.exit(2)

    async def connect() -> Syscalls:
        return await tokenix.aio.connect(config.socket or None)

    serve(config, connect)


if __name__ == "__main__":
    main()
