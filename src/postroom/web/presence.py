"""Whether an agent can be reached now, in three words, of which none is a guess.

at work    a run of it executes here
reachable  the server starts it when mail comes, or hooks of its client were seen lately
unknown    neither; it may be looking at its inbox all the same
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from postroom.contracts.mail import Agent
from postroom.stores.mail.access import MailReads

LATELY: Final = 60 * 60 * 1_000
"""Milliseconds for which hooks that were seen count."""

Word = Literal["at work", "reachable", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What is known of an agent, by what it is known, and since when."""

    word: Word
    how: str
    since: int


def of(
    reads: MailReads,
    agents: Sequence[Agent],
    at_work: Mapping[str, int],
    *,
    now: int,
    are_people: bool = False,
) -> dict[int, Presence]:
    """Return what is known of each agent that is not retired, by its id.

    `at_work` names agents in small letters, and since when a run of them executes. `are_people` says that
    they are people, who are reached in chats.
    """
    active = [one for one in agents if one.retired_at is None]
    ids = [one.id for one in active]
    runners, seen = reads.with_runner(ids), reads.sessions_seen(ids)
    return {
        one.id: _presence(
            one,
            began=at_work.get(one.name.casefold()),
            runner=runners.get(one.id),
            seen=seen.get(one.id),
            now=now,
            are_people=are_people,
        )
        for one in active
    }


def _presence(
    agent: Agent, *, began: int | None, runner: int | None, seen: int | None, now: int, are_people: bool
) -> Presence:
    if began is not None:
        return Presence(word="at work", how="its run began", since=began)
    if runner is not None:
        how = (
            "messages are said in a chat; it was named"
            if are_people
            else "mail starts it; its runner was set"
        )
        return Presence(word="reachable", how=how, since=runner)
    if seen is not None and now - seen <= LATELY:
        return Presence(word="reachable", how="hooks of its client were seen", since=seen)
    return Presence(word="unknown", how="last sign of life", since=agent.last_active_at)
