"""Running the program without a terminal."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tokenix.tui.app import TopApp
from tokenix.tui.settings import Settings

LIMIT_S = 60.0
"""Nothing takes so long, not even on a machine that does much else."""
SIZE = (120, 40)
QUICK = 0.2
"""Seconds between looks."""


def play(
    source: Any,
    story: Callable[[TopApp, Any], Awaitable[None]],
    size: tuple[int, int] = SIZE,
    **settings: Any,
) -> TopApp:
    """Run a story on a program that looks at `source` and has seen it."""

    async def run() -> TopApp:
        app = TopApp(source, Settings(**({"refresh": QUICK, "sort": "pid"} | settings)))
        async with app.run_test(size=size, notifications=True) as pilot:
            await until(pilot, lambda: app.snapshot is not None, "a look")
            await pilot.pause()
            await story(app, pilot)
        return app

    return asyncio.run(run())


async def until(pilot: Any, done: Callable[[], Any], what: str) -> None:
    """Until `done` is true."""
    end_s = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < end_s, f"{what} has not come about"
        await pilot.pause(0.01)


def words(app: TopApp) -> str:
    """What is on the screen, as text."""
    lines = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in line) for line in lines)


def toasts(app: TopApp) -> list[str]:
    """What was said at the corner of the screen."""
    return [notification.message for notification in app._notifications]


async def shown(app, pilot, *parts):
    """Until all of these words are on the screen."""
    for part in parts:
        await until(pilot, lambda part=part: part in words(app), part)
