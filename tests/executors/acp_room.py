"""An ACP executor over a fake agent, and repeated actions of its tests."""

import asyncio
import json
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from dispatch_room import PATIENCE
from executors.room import Room
from postroom.contracts.executor import AgentRunResult
from postroom.contracts.records import replace
from postroom.contracts.runners import Runner
from postroom.contracts.tools import ToolCallResume
from postroom.executors.acp import AcpExecutor
from postroom.executors.command import CommandLimits

AGENT = Path(__file__).with_name("fake_acp_agent.py")
QUICK = CommandLimits(grace=timedelta(milliseconds=200), farewell=timedelta(seconds=1))
PATIENT = CommandLimits(grace=timedelta(milliseconds=200), farewell=timedelta(seconds=20))
"""For agents that take their leave, however slow the machine is."""


def agent(words: str, options: Mapping[str, Any] | None = None, **fields: Any) -> Runner:
    """Return a runner whose program is the fake agent, which does this in its turn."""
    argv = (sys.executable, "-I", "-S", str(AGENT), words, json.dumps(options or {}))
    return Runner(argv=argv, **{"kind": "acp", "cwd": "/", **fields})


def decided(result: AgentRunResult, approved: bool | None) -> tuple[str, ToolCallResume]:
    """Return a person's answer to the one question of a run."""
    assert result.waiting is not None
    [ticket] = result.waiting.tickets
    answer = {"approved": approved} if approved is not None else "perhaps"
    return ticket.tool_call_id, ToolCallResume(decision_id=f"d-{approved}", result=answer)


class AcpRoom(Room):
    """A room whose executor speaks ACP."""

    def __init__(self, folder: Path, runner: Runner, **fields: Any) -> None:
        super().__init__(folder, runner, **{"limits": QUICK, **fields})
        self.commands = self.executor
        self.acp = AcpExecutor(self.runners, self.commands.process_runner)

    async def ends(self, text: str = "go", *decisions: tuple[str, ToolCallResume], **names: str) -> Any:
        """Run it and return its result."""
        asked = replace(await self.activation(text, **names), decisions=decisions)
        async with asyncio.timeout(PATIENCE):
            return await self.acp.run(asked, self.sink)

    async def run(self, text: str = "go", **names: str) -> str:
        return (await self.ends(text, **names)).response


def heard(journal: Path) -> list[dict[str, Any]]:
    """Return what the fake agent has heard."""
    return [json.loads(line) for line in journal.read_text().splitlines()]
