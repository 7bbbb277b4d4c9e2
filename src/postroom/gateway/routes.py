"""Which agent answers a message: rules, of which the first that matches decides.

a rule covers a place and senders ─┬─ it looks for words: it decides where they are found
└─ it looks for none: it decides, and no rule after it is looked at
no words were found, and the message is for us ─▶ the agent that is replied to, else the one that was
chosen with /agent, else that of the rule without words, else `[agent]`
... and it is not for us           ─▶ nobody
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fnmatch import translate
from functools import lru_cache

from postroom.contracts.errors import ConfigError
from postroom.contracts.messages import Json
from postroom.gateway.events import MessageEvent
from postroom.gateway.session import SessionSource

DEFAULT_AGENT = "default"
"""What people call the agent of `[agent]`."""
_PLACE = ("platform", "chat", "thread", "type", "sender")
_WORDS = ("mention", "pattern")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Which agent answers messages of which all this is true; of several values one must be, none is all."""

    agent: str | None = None
    """As `name@project`, or the name of one of the gateway's own models; None: `[agent]`."""
    platform: tuple[str, ...] = ()
    chat: tuple[str, ...] = ()
    thread: tuple[str, ...] = ()
    type: tuple[str, ...] = ()
    sender: tuple[str, ...] = ()
    mention: tuple[str, ...] = ()
    """Names that address the agent: `@name` anywhere, or `name:` and `name,` at the beginning."""
    pattern: tuple[str, ...] = ()
    """Shell patterns of the whole text, whatever the case: `*deploy*`."""

    @property
    def reads_words(self) -> bool:
        """Whether it looks at what a message says; then it also finds messages that are not for us."""
        return bool(self.mention or self.pattern)

    def covers(self, source: SessionSource) -> bool:
        """Say whether messages from there, of this sender, can be meant."""
        found = {
            "platform": source.platform.value,
            "chat": source.chat_id,
            "thread": source.thread_id,
            "type": source.chat_type,
            "sender": source.user_id,
        }
        return all(found[name] in wanted for name in _PLACE if (wanted := getattr(self, name)))

    def found_in(self, text: str) -> bool:
        """Say whether a text has the words that the rule looks for."""
        is_mentioned = not self.mention or any(_naming(name).search(text) for name in self.mention)
        return is_mentioned and (not self.pattern or any(_like(one).match(text) for one in self.pattern))

    def includes(self, other: "Route") -> bool:
        """Say whether every message that the other rule finds is found by this one."""
        pairs = ((_values(self, name), _values(other, name)) for name in (*_PLACE, *_WORDS))
        return all(not mine or "*" in mine or (its and its <= mine) for mine, its in pairs)

    def __str__(self) -> str:
        """Return its conditions in one line."""
        named = ((name, getattr(self, name)) for name in (*_PLACE, *_WORDS))
        return (
            ", ".join(f"{name} {' or '.join(values)}" for name, values in named if values) or "all messages"
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """Which agent answers a message (None: `[agent]`), and why."""

    agent: str | None
    why: str


def decide(routes: Sequence[Route], event: MessageEvent, chosen: str | None = None) -> Decision | None:
    """Say which agent answers a message; None when it is for nobody. `chosen` is what /agent chose here."""
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
    replied = next((agent for agent in open_to if agent and _is_by(event.reply_to_text, agent)), None)
    if replied is not None:
        return Decision(replied, "it replies to this agent")
    if chosen is not None and chosen in open_to:
        return Decision(chosen, "chosen with /agent")
    why = f"rule {routes.index(last) + 1}: {last}" if last in routes else "no rule before [agent] matches"
    return Decision(last.agent, why)


def reachable(routes: Sequence[Route], source: SessionSource) -> tuple[str | None, ...]:
    """Return the agents that the rules let somebody reach there, with whatever words; None is `[agent]`."""
    found: dict[str | None, None] = {}
    for rule in routes:
        if rule.covers(source):
            found[rule.agent] = None
            if not rule.reads_words:
                return tuple(found)
    return (*(agent for agent in found if agent is not None), None)


def check_routes(routes: Sequence[Route]) -> None:
    """Refuse a rule that no message can reach.

    Raises:
        ConfigError: an earlier rule finds every message that it would find.
    """
    for number, rule in enumerate(routes):
        for before, earlier in enumerate(routes[:number]):
            if earlier.includes(rule):
                first = f"rule {before + 1} ({earlier}) matches first"
                raise ConfigError(
                    f"rule {number + 1} ({rule}) is never reached: {first}",
                    value=str(rule),
                    remedy=f"write rule {number + 1} before rule {before + 1}, or remove one of them",
                )


def listed(routes: Sequence[Route]) -> list[dict[str, Json]]:
    """Return the rules in their order as plain data, with that of `[agent]` behind them."""
    return [{"agent": one.agent or DEFAULT_AGENT, "answers": str(one)} for one in (*routes, Route())]


def short_name(agent: str) -> str:
    """Return what people call an agent."""
    return agent.partition("@")[0]


def label(agent: str) -> str:
    """Return the beginning of what an agent says where several may answer."""
    return f"{short_name(agent)}: "


def is_one_of_several(routes: Sequence[Route], source: SessionSource) -> bool:
    """Say whether people in this group must be told which agent speaks."""
    return source.agent is not None and source.chat_type != "dm" and len(reachable(routes, source)) > 1


def _is_by(text: str | None, agent: str) -> bool:
    return text is not None and text.startswith(label(agent))


def _values(rule: Route, name: str) -> frozenset[str]:
    values: tuple[str, ...] = getattr(rule, name)
    return frozenset(value.casefold() if name in _WORDS else value for value in values)


@lru_cache(maxsize=1_000)
def _naming(name: str) -> re.Pattern[str]:
    word = re.escape(name)
    return re.compile(rf"(?<![\w@])@{word}(?!\w)|\A\s*{word}[:,]", re.IGNORECASE)


@lru_cache(maxsize=1_000)
def _like(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern), re.IGNORECASE)


CONDITIONS = tuple(one.name for one in fields(Route) if one.name != "agent")
"""What a rule may ask."""
