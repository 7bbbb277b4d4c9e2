"""The library logs as libraries do: by loggers of the standard library, which the program sets up."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.long
FAILS = """
import asyncio
from postroom import Mailbox

async def fails(run):
    raise ValueError("no\\nforged line")

async def main():
    async with Mailbox.open("memory", fails) as mailbox:
        try:
            await (await mailbox.enqueue("t", "go", attempts=1)).result(timeout=30)
        except Exception:
            pass

asyncio.run(main())
"""


def run(setup: str) -> tuple[str, str]:
    """Return what a program with this setting of its logs prints to stdout and stderr."""
    command = [sys.executable, "-c", setup + FAILS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    "setup",
    [
        "import logging; logging.disable(logging.CRITICAL)",
        "import logging; logging.getLogger('postroom').setLevel(logging.CRITICAL)",
        "import logging; logging.getLogger('postroom').addHandler(logging.NullHandler())",
        "import logging; logging.getLogger('postroom').disabled = True; "
        "logging.getLogger('postroom').addHandler(logging.NullHandler())",
    ],
)
def test_a_program_that_turns_logs_off_reads_nothing(setup: str) -> None:
    assert run(setup) == ("", "")


def test_a_program_s_own_handler_writes_the_lines_in_its_own_form() -> None:
    said, errors = run(
        "import logging, sys; logging.basicConfig(stream=sys.stdout, format='<%(name)s %(levelname)s> %(message)s')"
    )
    assert errors == ""
    first, *trace = said.splitlines()
    assert first.startswith("<postroom.dispatch.worker WARNING> run.attempt_failed run_id=")
    assert r"error='ValueError: no\nforged line'" in first
    assert trace[0].startswith("Traceback")
    assert trace[-2:] == ["ValueError: no", "forged line"]


def test_without_any_setting_a_failure_is_seen_on_stderr() -> None:
    said, errors = run("")
    assert said == ""
    assert errors.startswith("run.attempt_failed run_id=")
