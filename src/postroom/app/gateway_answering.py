"""Whom a gateway.toml has answer beside models: agents of the mail room, and people, who may not be there."""

from collections.abc import Mapping
from typing import NamedTuple

from postroom.app.gateway_config import GatewayFile
from postroom.gateway.config import PERSON, is_person


class Missing(NamedTuple):
    """What is wrong where somebody is named who is not there, and what can be done about it."""

    what: str
    remedy: str


def answering(told: GatewayFile) -> Mapping[str, Missing]:
    """Return the agents (`name@project`) and people (`human:name`) that are to answer, in the file's order.

    Each with what is to be said where there is none of this name.
    """
    found: dict[str, Missing] = {}
    if told.agent.run is not None:
        address = "@".join(told.agent.run[::-1])
        found[address] = _no_agent("[agent]", address)
    for number, rule in enumerate(told.gateway.routes, start=1):
        whom, where = rule.agent or "", f"[[routes]] rule {number}"
        other = told.others.get(whom)
        if is_person(whom):
            remedy = f"run `postroom people add {whom.removeprefix(PERSON)}`, or change {told.path.name}"
            found.setdefault(whom, Missing(f"{where} names {whom}, and nobody is named so", remedy))
        elif other is not None and other.run is not None:
            found.setdefault(whom, _no_agent(where, whom))
    return found


def _no_agent(where: str, agent: str) -> Missing:
    remedy = "register it, declare it as one of [[agents]], or name another"
    return Missing(f"{where} names {agent}, and there is no such agent", remedy)
