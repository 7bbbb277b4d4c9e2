"""Subscriptions: an agent is sent a message when something happens in its project."""

from typing import Final, Literal, get_args

from postroom.contracts.records import Record

Watched = Literal["agent_idle", "task_ready", "file_changed", "branch_merged"]
WATCHED: Final[tuple[Watched, ...]] = get_args(Watched)
"""The kinds of subscriptions."""
SUBSCRIPTION_THREAD: Final = "subscription-"
"""The beginning of the name of each thread with messages about a subscription."""
MAX_OF_AGENT: Final = 50
"""Maximum number of subscriptions of an agent."""


class Subscription(Record, frozen=True, kw_only=True):
    """One subscription of an agent to the log of its project."""

    id: int
    project_id: int
    agent_id: int
    kind: Watched
    about: str
    """The id of the watched agent or task, the pattern of the files, or the name of the branch.

    Empty for every task, and for every branch.
    """
    is_once: bool
    cursor: int
    """The number of the newest log entry that was considered."""
    created_at: int
