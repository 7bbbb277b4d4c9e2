"""Write the picture of README: a server with a small team at work, seen by a headless Chromium.

`make screenshot` runs it. The team is made up, and the rest is real: programs that the server runs, their
messages, reservations and questions.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from postroom.app import places
from postroom.cli.client import Server

PICTURE: Final = Path(__file__).with_name("images") / "control-room.png"
PROJECT: Final = "/home/me/shop"
WIDTH: Final = 1280
HEIGHT: Final = 920
TRIES: Final = 600
AGENT: Final = """
import os, sys, threading
from postroom.cli.client import Server

name, project = os.environ["POSTROOM_AGENT"], os.environ["POSTROOM_PROJECT"]
me = {"project_key": project, "agent_name": name}
call = lambda tool, **given: Server.find().call_tool(tool, {**me, **given})
path, end, *lines = sys.argv[1:]
sys.stdin.read()
call("file_reservation_paths", paths=[path], reason="at work on it")
print("\\n".join(lines), flush=True)
if end.endswith("?"):
    call("ask_person", question=end)
elif end == "works":
    threading.Event().wait()
else:
    sys.exit(end)
"""
"""A program for each agent: it reserves a path, says what it does, and then asks, works on, or fails."""
TEAM: Final = {
    "Ada": (
        "src/checkout/**",
        "All 214 tests pass. May I merge the new checkout into main?",
        "ran the tests: 214 passed",
        "the branch checkout-v2 is ready",
    ),
    "Ben": (
        "src/search/index.py",
        "works",
        "reading src/search/index.py",
        "the index is rebuilt for 12,400 products",
        "running tests/search ... 38 of 61",
    ),
    "Cleo": ("docs/prices.md", "prices.csv has no column 'currency'", "reading prices.csv"),
}
MAIL: Final = (
    ("Dora", "Ada", "New checkout", "Please finish the new checkout, and ask before you merge it."),
    ("Dora", "Ben", "Search is slow", "A search for *lamp* takes two seconds. Can you see why?"),
    ("Dora", "Cleo", "Price list", "Please write the price list from prices.csv."),
    ("Emil", "Ben", "Filter by colour", "When the index is faster: a filter by colour, please."),
    ("Emil", "Dora", "Pictures of the lamps", "They are in assets/lamps, all 24 of them."),
)


def until(what: str, look: Callable[[], bool]) -> None:
    """Look again and again, for a minute, until it is so.

    Raises:
        SystemExit: it is not; `what` names it.
    """
    pause = threading.Event()
    for _ in range(TRIES):
        if look():
            return
        pause.wait(0.1)
    raise SystemExit(f"waited a minute: {what}")


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    """Run a server on a data folder of its own, on a free port."""
    words = ["up", "--port", "0", "--data-dir", str(folder), "--no-archive"]
    environment = places.environment()
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"  # the picture names no folder
    running = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "postroom", *words],
        stdout=subprocess.DEVNULL,
        env={**environment, "PATH": path},
    )
    try:
        until("no server answers", lambda: places.read_server_note(folder) is not None)
        yield Server.find(data_dir=folder)
    finally:
        running.terminate()
        running.wait()


def play(at: Server, folder: Path) -> None:
    """Make the team, write the mail, and wait until each agent is as the picture shows it."""
    call: Callable[..., Any] = lambda tool, **given: at.call_tool(tool, {"project_key": PROJECT, **given})  # noqa: E731
    at.call_tool("ensure_project", {"human_key": PROJECT})
    for name in (*TEAM, "Dora", "Emil"):
        call("register_agent", name=name, program="script", model="none")
    for name, words in TEAM.items():
        environment = {"POSTROOM_DATA_DIR": str(folder)}
        runner = {"argv": ["python", "-c", AGENT, *words], "cwd": str(folder), "env": environment}
        at.admin("PUT", "/admin/runners", {"project": PROJECT, "agent": name, "runner": runner})
    for sender, to, subject, text in MAIL:
        call("send_message", sender_name=sender, to=[to], subject=subject, body_md=text)
    call(
        "file_reservation_paths", agent_name="Emil", paths=["src/search/*.py"], reason="the filter by colour"
    )
    until("the agents have not come so far", lambda: _has_come(at))


def _has_come(at: Server) -> bool:
    """Return whether one agent asks, one has failed, and the output of the one at work is stored."""
    listed: Any = at.admin("GET", "/admin/runs")
    runs = {run["state"]: run["run_id"] for run in listed["runs"]}
    if not {"asks", "at work", "failed"} <= set(runs):
        return False
    seen: Any = at.admin("GET", f"/admin/runs/one?run={runs['at work']}")
    return TEAM["Ben"][-1] in seen["output"]


def take(at: Server, folder: Path) -> None:
    """Log in to the control room and write what is seen there."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("no Chromium is installed")
    project: Any = at.call_tool("show_project", {"project_key": PROJECT})
    link: Any = at.admin("POST", "/admin/login-code", {"path": f"/p/{project['slug']}"})
    flags = (
        "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars "
        "--disable-background-networking --disable-component-update --disable-sync"
    )
    PICTURE.parent.mkdir(exist_ok=True)
    words = [*flags.split(), f"--user-data-dir={folder / 'browser'}", f"--window-size={WIDTH},{HEIGHT}"]
    subprocess.run(  # noqa: S603 - the browser that was found
        [browser, *words, f"--screenshot={PICTURE}", link["url"]],
        check=True,
        timeout=60,
        stderr=subprocess.DEVNULL,
    )


def main() -> None:
    """Make the team work, and take the picture."""
    with tempfile.TemporaryDirectory(prefix="postroom-") as made, server(folder := Path(made) / "data") as at:
        play(at, folder)
        take(at, Path(made))
    print(f"{PICTURE} has {PICTURE.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
