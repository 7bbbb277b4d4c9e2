"""The official MCP conformance suite, in its pinned version, against a server of ours behind its door."""

import subprocess
from pathlib import Path

import pytest

from e2e.running import RunningServer
from real_clients.door import opened
from real_clients.home import PROGRAMS, are_installed

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
PATIENCE = 300


def test_every_scenario_passes_except_those_that_are_listed_with_a_reason(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, opened(server) as address:
        asked = ["--url", address, "--suite", "all", "--expected-failures", EXPECTED, "-o", tmp_path / "out"]
        done = subprocess.run(
            [NODE, SUITE, "server", *asked], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    assert "server-initialize: 1 passed" in done.stdout
