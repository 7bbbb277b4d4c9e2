"""What hooks and watchers ask: typed like commands, but no tools; only the operator may send them."""

from typing import Annotated, Literal

from msgspec import Meta

from postroom.mail.commands import AgentName, Command, Cursor, MessageId, ProjectKey

_Path = Annotated[str, Meta(max_length=4096)]
MOST_PATHS = 5_000


class HookCall(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happened in a client's session."""

    session_id: Annotated[str, Meta(max_length=400)] = ""
    cwd: _Path = ""
    agent: Annotated[str, Meta(max_length=400, description="POSTROOM_AGENT of the client")] = ""
    guard: Literal["", "warn", "block", "off"] = ""
    paths: Annotated[tuple[_Path, ...], Meta(max_length=MOST_PATHS)] = ()
    stop_active: Annotated[bool, Meta(description="the turn was held before")] = False
    acts_as: Annotated[str, Meta(max_length=400, description="agent that a tool of ours acted as")] = ""
    acts_in: Annotated[str, Meta(max_length=4096, description="and its project")] = ""


class AwaitMessages(Command, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Follow an inbox, and wait for what comes."""

    project_key: ProjectKey
    agent_name: AgentName
    after: Cursor | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 100
    wait_seconds: Annotated[float, Meta(ge=0, le=30)] = 25.0
    shown: Annotated[tuple[MessageId, ...], Meta(max_length=200)] = ()
