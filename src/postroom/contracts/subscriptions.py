"""Subscriptions, by which agents receive a message when something happens in their project."""

from typing import Final, Literal, get_args

from postroom.contracts.records import Record

Watched = Literal["agent_idle", "task_ready", "file_changed", "branch_merged"]
WATCHED: Final[tuple[Watched, ...]] = get_args(Watched)
"""The kinds of subscriptions."""
SUBSCRIPTION_THREAD: Final = "subscription-"
"""The beginning of the name of each thread that contains the messages of a subscription."""
MAX_OF_AGENT: Final = 50
"""Maximum number of subscriptions that an agent can have."""


class Subscription(Record, frozen=True, kw_only=True):
    """A subscription of an agent to events in the agent's project."""

    id: int
    project_id: int
    agent_id: int
    kind: Watched
    about: str
    """The id of the watched agent or task, the pattern of the watched files, or the name of the watched
    branch.

    The field is empty for subscriptions to every task or every branch.
    """
    is_once: bool
    cursor: int
    """The number of the newest log entry that was checked for this subscription."""
    created_at: int
