"""Operations on subscriptions, and the selection of log entries for their messages."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypedDict

from postroom.contracts.clock import iso
from postroom.contracts.errors import (
    EventNotReported,
    InvalidArgument,
    TaskNotReady,
    TooLarge,
    UnknownSubscription,
)
from postroom.contracts.mail import Agent, EventKind, Project, ProjectEvent
from postroom.contracts.messages import CONTROL
from postroom.contracts.quoting import quoted
from postroom.contracts.subscriptions import MAX_OF_AGENT, Subscription, Watched
from postroom.contracts.tasks import ENDED_STATES
from postroom.mail.commands import EndSubscription, ListSubscriptions, Subscribe
from postroom.mail.context import ReadContext, WriteContext
from postroom.mail.git_identity import is_of_git
from postroom.mail.globs import matches, parse_pattern
from postroom.mail.identity import acting, acting_active, find_agent
from postroom.mail.reservations import normal_paths
from postroom.mail.tasks import find_task, story
from postroom.mail.waking.prompts import agent_thread
from postroom.stores.mail.access import RecordReads

KINDS_OF: Final[Mapping[Watched, Sequence[EventKind]]] = {
    "agent_idle": ("agent.idle", "run.ended", "run.failed"),
    "task_ready": ("task.ready",),
    "file_changed": ("file.changed",),
    "branch_merged": ("branch.merged", "branch.moved"),
}
"""The kinds of log entries that matter to each kind of subscription."""
_TASK: Final = re.compile(r"(?:task[ _-]?)?#? ?([0-9]{1,15})", re.IGNORECASE)
_LISTED: Final = 50
"""Maximum number of lines in a message. Further lines are only counted."""
_LONGEST_BRANCH: Final = 200
_RECENT: Final = 1_000
"""The number of newest log entries that are searched for the last end of a client's turn."""


class SubscriptionView(TypedDict):
    """A subscription to events.

    `about` is the agent, task, files or branch to which the agent has subscribed.
    """

    id: int
    kind: str
    about: str
    once: bool
    created_ts: str


class SubscribedView(SubscriptionView):
    """A new subscription.

    `now` describes the event if it has already occurred, in which case no message is sent.
    """

    now: str


class SubscriptionsView(TypedDict):
    """The subscriptions of an agent, by id."""

    subscriptions: list[SubscriptionView]


def subscribe(context: WriteContext, asked: Subscribe) -> SubscribedView:
    """Store a subscription to later events, or return an existing subscription to the same events.

    Raises:
        EventNotReported: The project has no Git repository that the server can read.
        InvalidArgument, InvalidPattern, UnknownAgent, UnknownTask: `about` does not match the kind.
        TaskNotReady: The task in `about` has ended.
        TooLarge: The agent has the maximum number of subscriptions.
    """
    project, agent = acting_active(context, asked.project_key, asked.agent_name)
    if asked.kind == "branch_merged" and not is_of_git(project.git_identity):
        raise EventNotReported(
            "the server cannot find a Git repository of this project",
            value=asked.kind,
            remedy="use a project whose folder is in a Git repository on the server's machine, "
            f"or subscribe to one of {', '.join(kind for kind in KINDS_OF if kind != asked.kind)}",
        )
    wanted = Subscription(
        id=0,
        project_id=project.id,
        agent_id=agent.id,
        kind=asked.kind,
        about=_checked_about(context, project, agent, asked),
        is_once=asked.once,
        cursor=context.tx.log_bounds(project.id).newest,
        created_at=context.now,
    )
    subscriptions = context.tx.subscriptions_of(agent.id)
    same = [
        subscription
        for subscription in subscriptions
        if (subscription.kind, subscription.about, subscription.is_once)
        == (wanted.kind, wanted.about, wanted.is_once)
    ]
    if not same and len(subscriptions) >= MAX_OF_AGENT:
        raise TooLarge(
            f"{agent.name} has {len(subscriptions)} subscriptions, and the maximum is {MAX_OF_AGENT}",
            value=MAX_OF_AGENT,
            remedy="end a subscription with end_subscription",
        )
    [view] = _views(context.tx, [same[0] if same else context.tx.insert_subscription(wanted)])
    return {**view, "now": _state(context, project, wanted)}


def _state(context: ReadContext, project: Project, subscription: Subscription) -> str:
    if subscription.kind == "task_ready" and subscription.about:
        task = context.tx.task(int(subscription.about))
        return f"task {subscription.about} is ready" if task is not None and task.state == "ready" else ""
    if subscription.kind == "agent_idle":
        agent = context.tx.agents_by_id([int(subscription.about)])[int(subscription.about)]
        if context.tx.runner(agent.id) is not None:
            return "" if context.tx.is_working(_threads(project, agent)) else f"{agent.name} is idle"
        after = max(0, subscription.cursor - _RECENT)
        events = context.tx.project_events(project.id, after=after, limit=_RECENT, kinds=["agent.idle"])
        ended = [event.happening.at for event in events if event.happening.agent_id == agent.id]
        if ended and ended[-1] >= agent.last_active_at:
            return f"{agent.name} is idle since {iso(ended[-1])}"
    return ""


def list_subscriptions(context: ReadContext, asked: ListSubscriptions) -> SubscriptionsView:
    """Return the subscriptions of the agent."""
    _, agent = acting(context, asked.project_key, asked.agent_name)
    return {"subscriptions": _views(context.tx, context.tx.subscriptions_of(agent.id))}


def end_subscription(context: WriteContext, asked: EndSubscription) -> SubscriptionsView:
    """End a subscription of the agent, and return the remaining subscriptions.

    Raises:
        UnknownSubscription: The agent has no such subscription.
    """
    _, agent = acting_active(context, asked.project_key, asked.agent_name)
    subscriptions = context.tx.subscriptions_of(agent.id)
    if asked.subscription_id not in {subscription.id for subscription in subscriptions}:
        raise UnknownSubscription(
            f"{agent.name} has no subscription {asked.subscription_id}", value=asked.subscription_id
        )
    context.tx.drop_subscription(asked.subscription_id)
    return {
        "subscriptions": _views(
            context.tx,
            [subscription for subscription in subscriptions if subscription.id != asked.subscription_id],
        )
    }


def news_for(
    tx: RecordReads,
    project: Project,
    subscription: Subscription,
    events: Sequence[ProjectEvent],
    *,
    case_sensitive: bool,
) -> list[str]:
    """Return the sentences about log entries that match a subscription, oldest first.

    The subscriber's own changes are omitted.
    """
    kinds, about = KINDS_OF[subscription.kind], subscription.about
    happenings = [
        event.happening
        for event in events
        if event.seq > subscription.cursor
        and event.happening.kind in kinds
        and event.happening.agent_id != subscription.agent_id
    ]
    if subscription.kind == "task_ready":
        ids = [
            int(happening.detail["task_id"])
            for happening in happenings
            if about in ("", str(happening.detail["task_id"]))
        ]
        tasks = [task for number in dict.fromkeys(ids) if (task := tx.task(number)) is not None]
        return [f"Task {task.id} is ready: {quoted(task.title, longest=200)}." for task in tasks]
    if subscription.kind == "agent_idle":
        ends = [happening for happening in happenings if str(happening.agent_id) == about]
        agent = tx.agents_by_id([int(about)]).get(int(about)) if ends else None
        if agent is None or (ends[-1].kind != "agent.idle" and tx.is_working(_threads(project, agent))):
            return []  # the run has not ended; a later entry reports its end
        return [f"{agent.name} is idle since {iso(ends[-1].at)}."]
    if subscription.kind == "branch_merged":
        merged = [happening.detail for happening in happenings if happening.kind == "branch.merged"]
        return list(
            dict.fromkeys(
                f"{quoted(str(branch['branch']), longest=200)} was merged into "
                f"{quoted(str(branch['into']), longest=200)} (now at commit {str(branch['commit'])[:10]})."
                for branch in merged
                if about in ("", branch["branch"])
            )
        )
    pattern = parse_pattern(about, case_sensitive=case_sensitive)
    changed = [happening for happening in happenings if matches(pattern, str(happening.detail["path"]))]
    names = tx.agents_by_id(
        sorted({happening.agent_id for happening in changed if happening.agent_id is not None})
    )
    authors = {number: agent.name for number, agent in names.items()}
    return list(
        dict.fromkeys(
            f"{authors.get(happening.agent_id or 0, 'somebody')} changed "
            f"{quoted(str(happening.detail['path']), longest=300)}."
            for happening in changed
        )
    )


def message_about(subscription: Subscription, sentences: Sequence[str]) -> tuple[str, str]:
    """Return the subject and the text of a message that reports events to a subscriber."""
    more = f"\n- and {len(sentences) - _LISTED} more" if len(sentences) > _LISTED else ""
    listed = "\n".join(f"- {sentence}" for sentence in sentences[:_LISTED])
    end = (
        "The subscription has ended."
        if subscription.is_once
        else f"To end this subscription, call end_subscription with {subscription.id}."
    )
    first = sentences[0].rstrip(".")
    subject = first if len(sentences) == 1 else f"{first}, and {len(sentences) - 1} more"
    return subject, f"{listed}{more}\n\n{end}"


def is_watched_file(context: ReadContext, project_id: int, agent: Agent, path: str) -> bool:
    """Return whether another agent has subscribed to changes of a file."""
    sensitive = context.rules.case_sensitive_paths
    return any(
        subscription.agent_id != agent.id
        and matches(parse_pattern(subscription.about, case_sensitive=sensitive), path)
        for subscription in context.tx.subscriptions_in(project_id, "file_changed")
    )


def is_watched(context: ReadContext, agent: Agent) -> bool:
    """Return whether another agent waits to be notified when the given agent becomes idle."""
    subscriptions = context.tx.subscriptions_in(agent.project_id, "agent_idle")
    return any(subscription.about == str(agent.id) for subscription in subscriptions)


def _threads(project: Project, agent: Agent) -> list[str]:
    return [agent_thread(project.slug, agent.name, lane) for lane in range(agent.runs_at_once)]


def _checked_about(context: WriteContext, project: Project, agent: Agent, asked: Subscribe) -> str:
    about = asked.about.strip()
    if asked.kind == "task_ready":
        if not about:
            return ""
        number = _TASK.fullmatch(about)
        if number is None:
            raise InvalidArgument(
                f"`about` is not a task number: {about[:80]!r}",
                value=about[:80],
                remedy="pass a task number, or leave `about` empty for every task",
            )
        task = find_task(context, project, int(number[1]))
        if task.state in ENDED_STATES:
            raise TaskNotReady(
                f"task {task.id} {story(context, project, task)}, so it will not become ready",
                value=task.id,
                remedy="choose another task, or leave `about` empty for every task",
                details={"state": task.state},
            )
        return str(task.id)
    if asked.kind == "branch_merged":
        if CONTROL.search(about) or len(about) > _LONGEST_BRANCH:
            raise InvalidArgument(
                f"`about` is not a branch name: {about[:80]!r}",
                value=about[:80],
                remedy="pass the name as `git branch` prints it, or leave `about` empty for every branch",
            )
        return about
    if not about:
        raise InvalidArgument(
            "`about` is empty",
            value=about,
            remedy="pass an agent's name" if asked.kind == "agent_idle" else "pass a file or a pattern",
        )
    if asked.kind == "agent_idle":
        other = find_agent(context.tx, project, about)
        if other.id == agent.id:
            raise InvalidArgument(
                "an agent cannot subscribe to its own idle state",
                value=about,
                remedy="choose another agent of the project",
            )
        return str(other.id)
    patterns = normal_paths(context, project, [about])
    if len(patterns) != 1:
        raise InvalidArgument(
            f"`about` means {len(patterns)} patterns",
            value=about,
            remedy=f"make one call for each: {', '.join(patterns)}",
        )
    return patterns[0]


def _views(tx: RecordReads, subscriptions: Sequence[Subscription]) -> list[SubscriptionView]:
    watched = [int(subscription.about) for subscription in subscriptions if subscription.kind == "agent_idle"]
    agents = tx.agents_by_id(watched) if watched else {}
    views = list[SubscriptionView]()
    for entry in subscriptions:
        about = entry.about
        if entry.kind == "agent_idle":
            agent = agents.get(int(about))
            about = agent.name if agent is not None else "?"
        views.append(
            {
                "id": entry.id,
                "kind": entry.kind,
                "about": about,
                "once": entry.is_once,
                "created_ts": iso(entry.created_at),
            }
        )
    return views
