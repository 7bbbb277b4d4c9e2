"""Permission requests: the question for a person, and their answer when the same request comes again.

The id of a question covers everything that the agent reported of the call, even details too long to show: a
different call is another question. Only the fields that identify the turn are left out: they differ in each
repetition. Used answers are noted before the agent gets them, so that a yes counts once.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from postroom.contracts.errors import PostroomError, StaleClaim
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.tools import ToolCallResume
from postroom.log import get_logger
from postroom.ports import RunControl

PREFIX: Final = "permission-"
MOST_SHOWN: Final = 2_000
"""Maximum characters of a call in a question; after a longer call, the rest is counted."""
MOST_TITLE: Final = 200
CALL_FIELDS: Final = ("title", "kind", "rawInput", "content", "locations")
OF_THE_TURN: Final = frozenset({"call_id", "approval_id", "turn_id", "started_at_ms"})
"""Fields in `rawInput` with which `codex-acp` identifies the turn, the call and its start."""
FORGETS: Final = (
    "The agent cannot restore a session: after an answer it starts again, and asks again for "
    "permissions that it had."
)
_LASTING: Final = "The agent offers no permission for a single use: a yes may apply for longer."


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """A permission request: `id` identifies the question, `text` is its text."""

    id: str
    text: str
    options: tuple[tuple[str, str], ...]
    """The kind and id of each option."""

    def option(self, *, approved: bool) -> str | None:
        """Return the option for a yes or no, for one time if there is such an option."""
        wanted = ("allow_once", "allow_always") if approved else ("reject_once", "reject_always")
        return next((id for want in wanted for kind, id in self.options if kind == want), None)


def told_of(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the agent's description of a call, without the fields that identify its turn.

    If one of these fields of an input holds the id of the call, the agent wrote the input, not the model.
    Otherwise such a field is an ordinary argument, and stays.
    """
    told = {name: call[name] for name in CALL_FIELDS if call.get(name) is not None}
    given, own = told.get("rawInput"), call.get("toolCallId")
    if (
        isinstance(given, dict)
        and isinstance(own, str)
        and own in (given.get("call_id"), given.get("approval_id"))
    ):
        told["rawInput"] = {name: value for name, value in given.items() if name not in OF_THE_TURN}
    return told


def permission_of(call: Mapping[str, Any], options: object) -> Permission | None:
    """Return the request of an agent with these options; None if they do not follow the protocol."""
    if not isinstance(options, list) or not all(isinstance(one, dict) for one in options):
        return None
    pairs = [(one.get("kind"), one.get("optionId")) for one in options]
    if not all(isinstance(kind, str) and isinstance(id, str) for kind, id in pairs):
        return None
    if not any(kind in ("allow_once", "allow_always") for kind, _ in pairs):
        return None
    lasts = all(kind != "allow_once" for kind, _ in pairs)
    told = {name: call[name] for name in CALL_FIELDS if call.get(name) is not None}
    named = json.dumps([told, lasts], sort_keys=True)
    return Permission(
        id=PREFIX + sha256(named.encode()).hexdigest()[:32],
        text=_question(told, lasts=lasts),
        options=tuple(pairs),
    )


def _question(told: Mapping[str, Any], *, lasts: bool) -> str:
    kind, title = told.get("kind"), str(told.get("title", "a tool"))
    title = title if len(title) <= MOST_TITLE else f"{title[:MOST_TITLE]}…"
    shown = [f"May the agent continue with {_visible(title)}"]
    shown.append(f" ({kind})" if isinstance(kind, str) and kind.isidentifier() else "")
    details = told["rawInput"] if "rawInput" in told else told.get("content")
    if details is None:
        shown.append("? The agent does not say exactly what it would do.")
    else:
        text = _visible(details)
        more = len(text) - MOST_SHOWN
        shown.append(f"? The call: {text[:MOST_SHOWN]}")
        shown.append(f"… ({more} more characters are not shown)" if more > 0 else "")
    if lasts:
        shown.append(f" {_LASTING}")
    return "".join(shown)


def _visible(value: object) -> str:
    """Return it as JSON without characters that hide or reorder words: those are written as codes."""
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


class Decisions:
    """People's decisions on requests; each decision answers one."""

    def __init__(self, decided: Iterable[tuple[str, ToolCallResume]], *, used: Collection[str] = ()) -> None:
        """Keep the unused decisions that are a yes or a no."""
        self._open = {
            id: resume
            for id, resume in decided
            if id.startswith(PREFIX) and resume.approved is not None and resume.decision_id not in used
        }

    def take(self, permission: Permission) -> ToolCallResume | None:
        """Return the decision on a request, once; None without a decision."""
        return self._open.pop(permission.id, None)


def selected(option: str | None) -> dict[str, Any]:
    """Return the answer to a request: an option, or that the turn ended without a decision."""
    if option is None:
        return {"outcome": {"outcome": "cancelled"}}
    return {"outcome": {"outcome": "selected", "optionId": option}}


_LOG = get_logger(__name__)
KEY: Final = "postroom.executors.acp.permissions"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedPermissions:
    """The decisions that one run has used, stored with its thread; the next run replaces them."""

    control: RunControl
    thread_id: str
    run_id: str

    async def all(self) -> list[str]:
        """Return the decisions that an agent got in this run."""
        kept = (await self.control.threads.load_thread_state(self.thread_id) or {}).get(KEY)
        if not isinstance(kept, dict) or kept.get("run") != self.run_id:
            return []
        used = kept.get("decisions")
        return [one for one in used if isinstance(one, str)] if isinstance(used, list) else []

    async def note(self, decision_id: str) -> bool:
        """Note that a decision is used; return False if that failed, so that it must not be used.

        Raises:
            StaleClaim: The worker no longer owns the run; nothing was written.
        """
        try:
            used = {"run": self.run_id, "decisions": [*await self.all(), decision_id]}
            state = await self.control.threads.load_thread_state(self.thread_id) or {}
            commit = ThreadCommit(thread_id=self.thread_id, thread_state={**state, KEY: used})
            await self.control.coordinator.commit(commit)
        except StaleClaim:
            raise
        except PostroomError as error:
            _LOG.warning("acp.permission_not_noted", run_id=self.run_id, reason=error.describe())
            return False
        return True
