"""The official MCP conformance suite, in its pinned version, against a postroom server."""

import subprocess
from pathlib import Path

import pytest

from e2e.running import RunningServer
from real_clients.door import opened
from real_clients.home import PROGRAMS, are_installed
from real_clients.suite_server import served

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not are_installed(("@modelcontextprotocol/conformance", "node")),
        reason="the conformance suite is not installed in its pinned version: `make clients`",
    ),
]

NODE = PROGRAMS.parent / "node" / "bin" / "node"
"""The suite needs Node.js 22, which is not on every machine."""
SUITE = PROGRAMS.parent / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
EXPECTED = Path(__file__).parent / "conformance.yml"
EXPECTED_OF_THE_ENDPOINT = Path(__file__).parent / "conformance_of_the_endpoint.yml"
PATIENCE = 300


def test_every_scenario_passes_except_those_that_are_listed_with_a_reason(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, opened(server) as address:
        told = run_suite(address, EXPECTED, tmp_path)
    assert "server-initialize: 1 passed" in told


def test_the_suites_own_tools_pass_behind_our_endpoint_except_what_needs_a_session(tmp_path: Path) -> None:
    """Most scenarios call tools of the suite: here these replace postroom's tools, everything else is the product."""
    with served() as server, opened(server) as address:
        told = run_suite(address, EXPECTED_OF_THE_ENDPOINT, tmp_path)
    assert told.count(": 1 passed, 0 failed") >= 19, told


def run_suite(address: str, expected: Path, folder: Path) -> str:
    """Return what the suite prints; fail if a scenario fails that is not expected to, or one passes that is."""
    asked = ["--url", address, "--suite", "all", "--expected-failures", expected, "-o", folder / "out"]
    done = subprocess.run(
        [NODE, SUITE, "server", *asked], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    return done.stdout
