"""A real browser without a window, spoken to over its debugging pipe."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from machine import PATIENCE

if TYPE_CHECKING:
    from e2e.running import RunningServer

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --remote-debugging-pipe"
)
# The browser reads commands from descriptor 3 and answers on 4; this puts the pipes there.
LAUNCH = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def program() -> str:
    """Return the browser; without one the test is skipped, and fails where the whole suite must run."""
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))),
        None,
    )
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no Chromium is installed")
    return found


class Browser:
    """One tab of a browser without a window."""

    def __init__(self, executable: str, profile: str) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        arguments = [executable, *FLAGS.split(), f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(commands), str(answers), *arguments],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._targets: dict[str, str] = {}
        self.events: list[dict] = []
        self.new_tab()

    def begin_anew(self) -> None:
        """Forget what the test before did: a new tab, without its scripts and settings, and nobody logged in."""
        others = self.tabs
        fresh = self.new_tab()
        for tab in others:
            self.close_tab(tab)
        self.go_to(fresh)
        self.ask("Network.clearBrowserCookies")

    def new_tab(self) -> str:
        """Open another tab, in a new window, and go to it; return its name, for `go_to`."""
        self._session = None
        target = self.ask("Target.createTarget", url="about:blank", newWindow=True)["targetId"]
        session = str(self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        self._targets[session] = target
        self.go_to(session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Page.setLifecycleEventsEnabled", enabled=True)
        return session

    @property
    def tab(self) -> str:
        """The tab that gets the commands."""
        assert self._session is not None
        return self._session

    @property
    def tabs(self) -> list[str]:
        """Every tab that is open, in the order in which they were opened."""
        return list(self._targets)

    def close_tab(self, tab: str) -> None:
        """Close a tab; another is gone to afterwards."""
        self._session = None
        self.ask("Target.closeTarget", targetId=self._targets.pop(tab))

    def go_to(self, tab: str) -> None:
        """Speak to another tab from now on."""
        self._session = tab

    def frame(self) -> str:
        """Attach to the sandboxed frame that the page shows; return its name, for `go_to`."""
        tab, self._session = self._session, None
        [frame] = [one for one in self.ask("Target.getTargets")["targetInfos"] if one["type"] == "iframe"]
        session = self.ask("Target.attachToTarget", targetId=frame["targetId"], flatten=True)["sessionId"]
        self._session = tab
        return str(session)

    def permit_notifications(self, origin: str) -> None:
        """Answer yes when pages of an origin ask for permission to notify."""
        tab, self._session = self._session, None
        self.ask("Browser.grantPermissions", origin=origin, permissions=["notifications"])
        self._session = tab

    def in_worker(self, home: str, expression: str) -> object:
        """Return what the promise of an expression becomes in the service worker of a server."""
        tab, self._session = self._session, None
        found = self.ask("Target.getTargets", filter=[{"type": "service_worker"}])["targetInfos"]
        [worker] = [one["targetId"] for one in found if one["url"].startswith(home)]
        attached = self.ask("Target.attachToTarget", targetId=worker, flatten=True)
        self._session = str(attached["sessionId"])
        told = self.awaited(expression)
        self._session = tab
        return told

    def awaited(self, expression: str) -> object:
        """Return what the promise of an expression becomes."""
        told = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def ask(self, method: str, **parameters: object) -> dict:
        """Send one command and return its answer."""
        message = self._answered(method, parameters)
        assert "error" not in message, message["error"]
        return message["result"]

    def _answered(self, method: str, parameters: dict) -> dict:
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while (message := self._receive()).get("id") != self._number:
            self.events.append(message)
        return message

    def wait_for(self, event: str) -> None:
        """Return once the browser has told of an event."""
        self._wait(lambda one: one["method"] == event)

    def _wait(self, wanted: Callable[[dict], bool]) -> None:
        while not any(wanted(one) for one in self.events):
            self.events.append(self._receive())

    def open(self, address: str, *, width: int = 1440, dark: bool = False) -> None:
        """Load a page in a window of this width, for a reader who prefers light or dark."""
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        loader = self.ask("Page.navigate", url=address)["loaderId"]
        # Not any load: that of the page before, which a link led to, may be told only now.
        self._wait(
            lambda one: (
                one["method"] == "Page.lifecycleEvent"
                and (one["params"]["name"], one["params"]["loaderId"]) == ("load", loader)
            )
        )

    def see(self, expression: str) -> object:
        """Return what an expression is in the page; None when the page went away while it was asked."""
        answer = self._answered("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        if "navigated" in answer.get("error", {}).get("message", ""):
            return None
        assert "error" not in answer, answer["error"]
        return answer["result"]["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and release a key."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            pressed = text if kind == "keyDown" else {}
            self.ask(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **pressed
            )

    def type(self, keys: str) -> None:
        """Press keys that stand for themselves, one after another."""
        for key in keys:
            self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
            self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)

    def complaints(self) -> list[str]:
        """Return what the browser refused or failed to do since the page was opened.

        What failed at a server of an earlier test is left out: its service worker outlives it.
        """
        told = {"Runtime.exceptionThrown", "Page.javascriptDialogOpening", "Runtime.consoleAPICalled"}
        local, here = "http://127.0.0.1:", f"{self.see('location.origin')}/"
        entries = [one["params"]["entry"] for one in self.events if one["method"] == "Log.entryAdded"]
        entries = [
            one for one in entries if not one.get("url", "").startswith(local) or one["url"].startswith(here)
        ]
        wrong = [one["text"] for one in entries if one["level"] in ("error", "warning")]
        return wrong + [str(one["params"]) for one in self.events if one["method"] in told]

    def fetched(self) -> list[str]:
        """Return every address that was requested since the page was opened."""
        asked = [one["params"] for one in self.events if one["method"] == "Network.requestWillBeSent"]
        return [one["request"]["url"] for one in asked]

    def close(self) -> None:
        """End the browser and all its processes."""
        os.close(self._commands)
        os.close(self._answers)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(PATIENCE)

    def _receive(self) -> dict:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], PATIENCE)
            assert ready, "the browser does not answer"
            piece = os.read(self._answers, 1 << 16)
            assert piece, "the browser has ended"
            self._buffer += piece
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)


def log_in(server: "RunningServer", browser: Browser, path: str = "/", width: int = 390) -> None:
    """Log a person in, and open a page."""
    with server.line() as line:
        link = line.order("POST", "/admin/login-code", {}).json()["url"]
    browser.open(link, width=width)
    browser.open(server.url + path, width=width)
