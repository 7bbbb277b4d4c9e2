"""The `[[agents]]` tables of the configuration file. Each declares an agent, its project and its runner."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from postroom.app import places
from postroom.app.config import read_tables
from postroom.app.tokens import shown
from postroom.contracts.clock import duration_of
from postroom.contracts.errors import ConfigError, InvalidName, InvalidRunner, PostroomError
from postroom.contracts.messages import CONTROL
from postroom.contracts.runners import AnyRunner, runner_of
from postroom.mail.names import check_name
from postroom.toml_files import TableName

TABLE: Final = "agents"
_OWN: Final = ("name", "project", "task")
_TIMES: Final = ("timeout", "idle_timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredAgent:
    """An agent that the configuration file declares."""

    file: Path
    """The file that declares the agent."""
    name: str
    project: str
    """The absolute path of the project's folder."""
    task: str
    runner: AnyRunner

    def refused(self, error: PostroomError) -> ConfigError:
        """Return an error that says that this server cannot run the agent."""
        return _wrong(self.file, self.name, error.message, error.remedy)


def load_agents(environment: Mapping[str, str]) -> tuple[DeclaredAgent, ...]:
    """Return the agents that the configuration file declares; return no agents if there is no file.

    Raises:
        ConfigError: A declaration is invalid.
    """
    tables = read_tables(environment, TABLE)
    agents = tuple(_agent(place, item) for place, item in tables)
    named = [(agent.project, agent.name.casefold()) for agent in agents]
    twice = next((agent for agent in agents if named.count((agent.project, agent.name.casefold())) > 1), None)
    if twice is not None:
        raise _wrong(
            tables[0][0].file, twice.name, "the agent is declared twice", "remove one of the two declarations"
        )
    return agents


def _agent(place: TableName, told: Mapping[str, Any]) -> DeclaredAgent:
    file, which = place.file, f"number {place.number}"
    for name in ("name", "project"):
        if name not in told:
            raise _wrong(file, which, f"{name} is missing", f"add {name}")
        if not isinstance(told[name], str) or not told[name].strip():
            raise _wrong(file, which, f"{name} is {shown(told[name])!r}", f"write a text for {name}")
        if CONTROL.search(told[name]):
            raise _wrong(file, which, f"{name} contains control characters: {told[name]!r}", "remove them")
        which = told["name"]
    if not isinstance(told.get("task", ""), str):
        raise _wrong(file, which, f"task is {shown(told['task'])!r}, not text", "write a text for task")
    project = places.absolute(told["project"], places.environment(), base=file.parent)
    runner = {name: value for name, value in told.items() if name not in _OWN}
    try:
        check_name(told["name"].strip())
        times: dict[str, Any] = {}
        for name in _TIMES:
            if name in runner:
                value = runner[name]
                if isinstance(value, bool) or not isinstance(value, str | int | float):
                    raise ValueError("a time must be a number of seconds, or a text such as 30m")
                times[name] = duration_of(value).total_seconds() if isinstance(value, str) else value
        checked = runner_of({**runner, **times}, home=str(project))
    except (InvalidRunner, InvalidName, ValueError) as error:
        reason = error.message if isinstance(error, PostroomError) else str(error)
        raise _wrong(
            file,
            which,
            reason,
            getattr(error, "remedy", "") or ("see docs/runners.md for the settings of an agent"),
        ) from error
    return DeclaredAgent(
        file=file, name=told["name"].strip(), project=str(project), task=told.get("task", ""), runner=checked
    )


def _wrong(file: Path, which: str, reason: str, remedy: str) -> ConfigError:
    agent = f" {which}" if which else ""
    return ConfigError(f"{file} [[{TABLE}]]{agent}: {reason}", value=which or None, remedy=remedy)
