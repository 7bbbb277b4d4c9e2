"""A CooperBench agent: CooperBench's Claude Code agent, with postroom instead of CooperBench's own messages.

It runs in the environment of CooperBench, which is not ours. It needs the same as CooperBench: Docker or
Modal, Redis, the key of a model and the data set. Each pair of agents needs a postroom server with an empty
data folder, because the repository has the same path in every container. The containers reach the server as
`host.docker.internal`:

    POSTROOM_DATA_DIR=$(mktemp -d) POSTROOM_ALLOWED_HOSTS=host.docker.internal postroom up --host 0.0.0.0
    export POSTROOM_URL=http://127.0.0.1:8765 POSTROOM_TOKEN=...  # the file `token` of the data folder
    python benchmarks/peers/cooperbench_agent.py run --agent claude_code_postroom --concurrency 1 ...
"""

import os
import shlex
import sys
import tempfile
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from cooperbench import cli
from cooperbench.agents import AgentResult
from cooperbench.agents._coop.runtime import CONTAINER_REPO_PATH, rewrite_comm_url_for_container
from cooperbench.agents.claude_code import adapter
from cooperbench.agents.registry import register

NAME: Final = "claude_code_postroom"
TEAM: Final = (
    "\n\nYour teammates {partners} build other features of this repository at the same time, each in a copy "
    "of their own. You reach them with the tools of the MCP server `postroom`, as the agent {agent} of the "
    "project {project}."
)
SETUP: Final = """
command -v postroom >/dev/null || python3 -m pip install --quiet "${POSTROOM_PACKAGE:-postroom}"
for agent in $POSTROOM_TEAM; do postroom agents register "$agent" --project {project}; done
cd {project} && postroom setup claude --tools core
"""
"""The commands that follow CooperBench's own installation of Claude Code in a container.

Each container registers the whole pair, so that an agent can write to a partner whose container is not
ready yet.
"""
_team: ContextVar[tuple[str, ...]] = ContextVar("team", default=())
"""The agent of the run, and after it the others of its pair."""
_build = adapter._build_environment  # noqa: SLF001 - the place that its own tests replace


class Environment:
    """A container of CooperBench whose commands run as the first agent of a team."""

    def __init__(self, inner: Any, team: tuple[str, ...]) -> None:
        self._inner = inner
        address = rewrite_comm_url_for_container(os.environ["POSTROOM_URL"])
        settings = {
            "POSTROOM_URL": address,
            "POSTROOM_TOKEN": os.environ["POSTROOM_TOKEN"],
            "POSTROOM_AGENT": team[0],
            "POSTROOM_TEAM": " ".join(team),
            "CLAUDE_CONFIG_DIR": adapter.CONTAINER_CLAUDE_CONFIG_DIR,
        }
        self._exports = "".join(
            f"export {name}={shlex.quote(str(value))}; " for name, value in settings.items()
        )

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run a command in the container."""
        command = {**action, "command": self._exports + action["command"]}
        return dict(self._inner.execute(command, cwd, timeout=timeout))

    def cleanup(self) -> None:
        """Remove the container."""
        self._inner.cleanup()


def _build_with_postroom(image: str, *, extra_run_args: list[str] | None = None, **more: Any) -> Any:
    """Build the container of a run; one of this agent can reach the host, where the server is."""
    if not (team := _team.get()):
        return _build(image, extra_run_args=extra_run_args, **more)
    arguments = list(dict.fromkeys([*(extra_run_args or ()), "--add-host=host.docker.internal:host-gateway"]))
    return Environment(_build(image, extra_run_args=arguments, **more), team)


@register(NAME)
class ClaudeCodeWithPostroom(adapter.ClaudeCodeRunner):
    """CooperBench's Claude Code, whose messages, tasks and notes are those of postroom."""

    def run(self, task: str, image: str, **more: Any) -> AgentResult:
        """Run one agent of a pair; CooperBench's own messages are off."""
        agent = more.get("agent_id", "agent")
        partners = [one for one in more.get("agents") or () if one != agent]
        names = {"partners": ", ".join(partners), "agent": agent, "project": CONTAINER_REPO_PATH}
        token = _team.set((agent, *partners))
        try:
            told = task + TEAM.format(**names) if partners else task
            return super().run(told, image, **{**more, "messaging_enabled": False})
        finally:
            _team.reset(token)


def install() -> None:
    """Make CooperBench's adapter of Claude Code set up postroom in the containers of this agent."""
    adapter._build_environment = _build_with_postroom  # noqa: SLF001 - as above
    script = adapter.SETUP_SCRIPT_PATH.read_text() + SETUP.replace("{project}", CONTAINER_REPO_PATH)
    folder = Path(tempfile.mkdtemp())
    adapter.SETUP_SCRIPT_PATH = folder / "setup.sh"
    adapter.SETUP_SCRIPT_PATH.write_text(script)


if __name__ == "__main__":
    install()
    sys.exit(cli.main())
