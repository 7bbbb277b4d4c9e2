"""The agents and people who answer in chats according to gateway.toml, and who may be missing."""

import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from postroom.app.gateway_config import GatewayFile
from postroom.gateway.config import PERSON, is_person


class Missing(NamedTuple):
    """The reason why an agent or person cannot answer in chats, and the remedy."""

    what: str
    remedy: str


class Named(NamedTuple):
    """An agent (`name@project`) or person (`human:name`) who must answer in chats."""

    whom: str
    where: str
    """The table or rule of the gateway file that contains the name, such as `[agent]`."""
    file: str
    """The name of the gateway file."""

    @property
    def _options(self) -> str:
        name, _, project = self.whom.partition("@")
        return f"{name} -p {shlex.quote(project)}"

    @property
    def gone(self) -> Missing:
        """Return the problem that the agent or person in the gateway file does not exist."""
        if not is_person(self.whom):
            remedy = f"run `postroom agents register {self._options}`, or use another agent"
            return Missing(f"{self.where} names {self.whom}, but there is no such agent", remedy)
        remedy = f"run `postroom people add {self.whom.removeprefix(PERSON)}`, or change {self.file}"
        return Missing(f"{self.where} names {self.whom}, but there is no such person", remedy)

    def gone_but(self, addresses: Sequence[str]) -> Missing:
        """Return the problem that the agent does not exist; the remedy lists `addresses`.

        `addresses` are the addresses of agents with the same name in other projects.
        """
        if not addresses:
            return self.gone
        name = self.whom.partition("@")[0]
        return Missing(self.gone.what, f"use one of the agents named {name}: {', '.join(addresses)}")

    @property
    def not_run(self) -> Missing:
        """Return the problem that the agent has no runner."""
        remedy = f"run `postroom agents set-runner {self._options} -- PROGRAM`, or use another agent"
        return Missing(f"{self.where} names {self.whom}, but this agent has no runner", remedy)


def answering(told: GatewayFile) -> Mapping[str, Named]:
    """Return the agents and people who must answer in chats, keyed by address."""
    result: dict[str, Named] = {}
    if told.agent.run is not None:
        address = "@".join(told.agent.run[::-1])
        result[address] = Named(address, "[agent]", told.path.name)
    for number, rule in enumerate(told.gateway.routes, start=1):
        whom = rule.agent or ""
        other = told.others.get(whom)
        if is_person(whom) or (other is not None and other.run is not None):
            result.setdefault(whom, Named(whom, f"[[routes]] rule {number}", told.path.name))
    return result
