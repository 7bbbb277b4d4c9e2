"""The way in which a new message would reach an agent, and why earlier ways would not."""

from collections.abc import Iterator
from typing import TypedDict

from postroom.contracts.errors import InvalidRunner
from postroom.contracts.mail import Agent, Project
from postroom.contracts.runners import Runner
from postroom.mail.context import ReadContext
from postroom.mail.projects import PEOPLE_SLUG
from postroom.mail.sending import CHAT, HOOK, INBOX, LIVE, RUNNER
from postroom.mail.waking.runners import read_runner, reads_at_work


class WayView(TypedDict):
    """One way. `taken` is true if a message would use it now; `why` gives the reason in both cases."""

    way: str
    taken: bool
    why: str


def ways(context: ReadContext, project: Project, agent: Agent) -> list[WayView]:
    """Return the ways to an agent in the order in which they are tried, up to the first that is taken."""
    if agent.retired_at is not None:
        return [WayView(way=INBOX, taken=False, why="it is retired and receives no messages")]
    found = list[WayView]()
    for way, taken, why in _tried(context, project, agent):
        found.append(WayView(way=way, taken=taken, why=why))
        if taken:
            break
    return found


def _tried(context: ReadContext, project: Project, agent: Agent) -> Iterator[tuple[str, bool, str]]:
    reach = context.tx.reach(agent.id, [agent.id]).get(agent.id)
    if project.slug == PEOPLE_SLUG:
        has_chat = reach is not None and reach.is_woken
        yield (
            CHAT,
            has_chat,
            "it has a chat" if has_chat else "it has no chat: `postroom people add`",
        )
    else:
        kept = context.tx.runner(agent.id)
        runner = None if kept is None else kept.runner
        yield LIVE, False, _at_work(runner)
        yield RUNNER, runner is not None, _by_runner(runner)
        has_session = reach is not None and reach.has_session
        yield HOOK, has_session, _by_hook(has_session=has_session)
    yield INBOX, True, "nothing announces messages: it must fetch its inbox"


def _at_work(runner: str | None) -> str:
    if runner is None:
        return "it has no runner"
    if reads_at_work(runner):
        return "only a message on the thread of an active run is passed to that run"
    return "its runner passes messages only at the start of a run"


def _by_runner(runner: str | None) -> str:
    if runner is None:
        return "it has no runner: `postroom agents set-runner`"
    try:
        known = read_runner(runner)
    except InvalidRunner as error:
        return f"a run starts, and will fail: {error.describe()}"
    recipe = f", {known.recipe.value}" if isinstance(known, Runner) else ""
    return f"a run starts, or waits until the active run has ended: {known.kind.value}{recipe}"


def _by_hook(*, has_session: bool) -> str:
    if has_session:
        told = "a client with hooks has acted as it, and announces messages at the next step"
        return (
            f"{told}; an idle Claude Code or Codex starts a turn, and so does Copilot CLI with "
            "postroom's extension; other idle clients wait for their user"
        )
    return "no client with hooks has acted as it: `postroom setup`"
