"""Chooses the agent for a message: the first matching rule decides.

a rule covers a place and senders ─┬─ with words: it decides if they are found
                                   └─ without words: it decides, and no later rule is tried
no words were found, and the message is for the bot ─▶ the agent of the answered message, else the one
                                   chosen with /agent, else that of the rule without words, else `[agent]`
                     ... and it is not for the bot  ─▶ nobody
"""

from collections.abc import Sequence
from dataclasses import dataclass

from postroom.contracts.errors import ConfigError
from postroom.contracts.messages import Json
from postroom.gateway.config import DEFAULT_AGENT, Route, label, reachable
from postroom.gateway.events import MessageEvent


@dataclass(frozen=True, slots=True)
class Decision:
    """The agent that answers a message, and the reason for the choice."""

    agent: str | None
    why: str


def decide(routes: Sequence[Route], event: MessageEvent, chosen: str | None = None) -> Decision | None:
    """Return the agent that answers a message, or None if no agent answers.

    `chosen` is the agent that the chat selected with `/agent`.
    """
    source = event.source
    if source is None:
        return None
    last = Route()
    for rule in routes:
        if not rule.covers(source):
            continue
        if not rule.reads_words:
            last = rule
            break
        if rule.found_in(event.text):
            return Decision(rule.agent, f"rule {routes.index(rule) + 1}: {rule}")
    if not event.addressed:
        return None
    open_to = reachable(routes, source)
    replied = next(
        (
            agent
            for agent in open_to
            if agent and (event.reply_to_text is not None and event.reply_to_text.startswith(label(agent)))
        ),
        None,
    )
    if replied is not None:
        return Decision(replied, "the message replies to this agent")
    if chosen is not None and chosen in open_to:
        return Decision(chosen, "chosen with /agent")
    why = (
        f"rule {routes.index(last) + 1}: {last}"
        if last in routes
        else ("no earlier rule matches, so [agent] applies")
    )
    return Decision(last.agent, why)


def check_routes(routes: Sequence[Route]) -> None:
    """Check that every route can match a message.

    Raises:
        ConfigError: An earlier rule matches every message that a later rule would match.
    """
    for number, rule in enumerate(routes):
        for before, earlier in enumerate(routes[:number]):
            if earlier.includes(rule):
                first = f"rule {before + 1} ({earlier}) matches first"
                raise ConfigError(
                    f"rule {number + 1} ({rule}) can never match: {first}",
                    value=str(rule),
                    remedy=f"move rule {number + 1} before rule {before + 1}, or remove one of them",
                )


def listed(routes: Sequence[Route]) -> list[dict[str, Json]]:
    """Return the routes as plain data, followed by the default route to `[agent]`."""
    return [{"agent": route.agent or DEFAULT_AGENT, "answers": str(route)} for route in (*routes, Route())]
