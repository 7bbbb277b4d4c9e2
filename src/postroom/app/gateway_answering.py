"""The agents and people who answer in chats according to gateway.toml, and who may be missing."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from postroom.app.gateway_config import GatewayFile
from postroom.gateway.config import PERSON, is_person


class Missing(NamedTuple):
    """The problem with an agent or person who cannot answer, and the remedy."""

    what: str
    remedy: str


class Named(NamedTuple):
    """An agent (`name@project`) or person (`human:name`) whom the gateway file names to answer a chat."""

    whom: str
    where: str
    """The table or rule of the gateway file that contains the name, such as `[agent]`."""
    file: str
    """The name of the gateway file."""

    @property
    def gone(self) -> Missing:
        """Return the problem if no agent or person has this name."""
        if not is_person(self.whom):
            remedy = "register the agent, declare it in [[agents]], or use another agent"
            return Missing(f"{self.where} names {self.whom}, but there is no such agent", remedy)
        remedy = f"run `postroom people add {self.whom.removeprefix(PERSON)}`, or change {self.file}"
        return Missing(f"{self.where} names {self.whom}, but there is no such person", remedy)

    def gone_but(self, addresses: Sequence[str]) -> Missing:
        """Return the problem if no agent has this address.

        The text lists `addresses`, which belong to agents with the same name.
        """
        if not addresses:
            return self.gone
        name = self.whom.partition("@")[0]
        return Missing(self.gone.what, f"use one of the agents named {name}: {', '.join(addresses)}")

    @property
    def not_run(self) -> Missing:
        """Return the problem if the agent has no runner."""
        remedy = "give the agent a runner with `postroom agents set-runner`, or use another agent"
        return Missing(f"{self.where} names {self.whom}, but this agent has no runner", remedy)


def answering(told: GatewayFile) -> Mapping[str, Named]:
    """Return the agents and people who answer in chats, in the order of the file."""
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
