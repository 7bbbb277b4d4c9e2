"""How fluently the timeline's picture moves, by the trace that a headless Chromium makes of itself."""

import asyncio
import contextlib
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

import uvicorn
from starlette.applications import Starlette

from benchmarks.figures import Table, median, ms, p95, size
from postroom.contracts.clock import SystemClock
from postroom.stores.sqlite import SqliteStore
from postroom.web.pages import page_routes

AGENTS = size(100, 3)
EACH = size(87, 2)
ZOOMS = size((3.0, 1 / 3, 3.0, 1 / 3), (1.2,))
AIM: Final = 50
CATEGORIES: Final = [
    "cc",
    "devtools.timeline",
    "disabled-by-default-devtools.timeline",
    "disabled-by-default-devtools.timeline.frame",
]
PLOT: Final = "(box => [box.x + 300, box.y + 60])(document.querySelector('.tl-plot').getBoundingClientRect())"
"""A place in the picture that is within a headless browser's own window, which is smaller than the page's."""


def main() -> None:
    """Print the table."""
    from e2e.browser import Browser, program

    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder, _pages(Path(folder)) as address:
        browser = Browser(program(), f"{folder}/profile")
        try:
            measure(browser, address)
        finally:
            browser.close()


def measure(browser: Any, address: str) -> None:
    """Move the picture by hand, as far as the browser knows, and print how many frames it drew."""
    browser.open(f"{address}?open=quiet,idle")
    browser.ask(
        "Page.captureScreenshot"
    )  # the first frame is drawn: before it, no place is within the window
    held = str(browser.see("document.querySelector('.tl-span .soft').textContent"))
    marks = browser.see("document.querySelectorAll('.tl-drawing a').length")
    table = Table(f"The timeline of {AGENTS} agents: {held}, drawn as {marks} marks")
    for what, move in (("zoom, Ctrl and wheel", _zoom), ("scroll", _scroll)):
        seen = Trace.of(browser, move)
        table.add(
            what,
            f"{seen.rate:.0f} frames/s, processor {ms(seen.main_cpu)} a frame in the page, {ms(seen.cpu)} in "
            "the browser",
            f"time between frames: median {ms(median(seen.gaps))}, p95 {ms(p95(seen.gaps))}",
            None,
            f"at least {AIM} frames/s",
        )


def _zoom(browser: Any) -> None:
    x, y = browser.see(PLOT)
    for by in ZOOMS:
        pinch = {"scaleFactor": by, "relativeSpeed": 400, "gestureSourceType": "mouse"}
        browser.ask("Input.synthesizePinchGesture", x=x, y=y, **pinch)


def _scroll(browser: Any) -> None:
    x, y = browser.see(PLOT)
    for number, _ in enumerate(ZOOMS):
        way = -1200 if number % 2 == 0 else 1200
        browser.ask("Input.synthesizeScrollGesture", x=x, y=y, yDistance=way, speed=1200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a trace tells of frames: times in seconds."""

    gaps: list[float]
    cpu: float
    main_cpu: float

    @property
    def rate(self) -> float:
        """Frames a second."""
        return len(self.gaps) / sum(self.gaps)

    @classmethod
    def of(cls, browser: Any, move: Callable[[Any], None]) -> Self:
        """Trace the browser while something moves."""
        browser.ask(
            "Tracing.start", transferMode="ReportEvents", traceConfig={"includedCategories": CATEGORIES}
        )
        move(browser)
        browser.events.clear()
        browser.ask("Tracing.end")
        browser.wait_for("Tracing.tracingComplete")
        told = [one["params"]["value"] for one in browser.events if one["method"] == "Tracing.dataCollected"]
        events = [event for part in told for event in part]
        drawn = sorted(one["ts"] / 1e6 for one in events if one["name"] == "DrawFrame")
        gaps = [later - sooner for sooner, later in pairwise(drawn)]
        spent = lambda name: sum(one.get("tdur", 0) for one in events if one["name"] == name) / 1e6  # noqa: E731
        return cls(
            gaps=gaps,
            cpu=spent("RunTask") / len(drawn),
            main_cpu=spent("ProxyMain::BeginMainFrame") / len(drawn),
        )


@contextlib.contextmanager
def _pages(folder: Path) -> Iterator[str]:
    """Serve the pages of a shop that was at work for eight hours."""
    from still_room import still_room
    from timeline_room import a_shop

    now, clock = SystemClock().now(), SystemClock()
    store = SqliteStore.open(folder / "postroom.db")
    asyncio.run(store.write(lambda tx: a_shop(tx, now=now, agents=AGENTS, each=EACH)))
    app = Starlette(
        routes=page_routes(store.runs.store, clock=clock, services=still_room(now=now, messages=(1, 2)))
    )
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", ws="none"))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listening],), name="pages")
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/p/orchard/timeline"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
        store.close()


if __name__ == "__main__":
    main()
