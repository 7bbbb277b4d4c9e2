"""Stores which thread each chat session uses, and to which chat the answers of a thread are delivered."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from secrets import token_hex
from urllib.parse import unquote

from postroom.contracts.chat import ChatSession, SessionThread, parse_inbound_id
from postroom.contracts.clock import Clock, milliseconds
from postroom.contracts.errors import UnknownThread, VersionConflict
from postroom.contracts.messages import Message
from postroom.contracts.people import ChatAddress
from postroom.contracts.records import replace
from postroom.gateway.config import GatewayConfig, ResetMode, SessionResetPolicy, is_one_of_several, label
from postroom.gateway.quiet import QuietHours
from postroom.gateway.replies import build_outbox_target, thread_name
from postroom.gateway.session import Platform, SessionSource, build_session_key
from postroom.stores.chats.sessions import Activity
from postroom.stores.chats.stores import ChatStores
from postroom.stores.store import Transaction

_TOUCH_AFTER_MS = 30_000
"""The minimum time between two writes of a session's last activity."""
_MAX_ADDRESSES = 10_000
_TRIES = 16
QUIET_OFF = "off"
"""The stored value that turns quiet hours off in a chat, even if the configuration file sets some."""
MAX_HIDDEN = 200
"""Maximum number of runs of one thread that can be undone."""
_HIDDEN = "hidden"
"""The setting that stores undone runs.

The undone runs of a thread are keyed by run id. Earlier releases stored undone runs in the session instead.
"""
_HIDES = "hides"
"""The setting that marks a session as having undone runs."""
_CHOSEN = "agent"
"""The session setting that stores the agent chosen in the chat."""


class Sessions:
    """Loads, changes and resets the sessions of all chats."""

    def __init__(
        self,
        stores: ChatStores,
        config: GatewayConfig,
        clock: Clock,
        new_id: Callable[[], str] = lambda: token_hex(16),
    ) -> None:
        self._store = stores.sessions
        self._intake_log = stores.intake_log
        self._is_shared = stores.is_shared
        self._config = config
        self._clock = clock
        self._new_id = new_id
        self._addresses: OrderedDict[str, tuple[str, SessionSource]] = OrderedDict()
        self._known: OrderedDict[str, ChatSession] = OrderedDict()
        """A cache of stored sessions. The cache stays empty if other processes change sessions, too."""
        self.new_cards: dict[str, str] = {}
        """The ids of cards that chats show already, but that are not stored yet, keyed by question number."""

    async def of(self, key: str, source: SessionSource) -> tuple[ChatSession, bool]:
        """Return the session of a message, and whether the reset policy has just reset the session."""
        session, began_anew = await self.current(key, source)
        activity = self.activity(session, source)
        if activity is not None:
            session = await self.changed(key, activity.noted)
            self._addresses.pop(session.thread_id, None)
        return session, began_anew

    async def current(self, key: str, source: SessionSource) -> tuple[ChatSession, bool]:
        """Return the session of a message like `of`, but do not store the time of the activity.

        The caller must store the time of the activity.
        """
        now = self._clock.now()
        session = await self.load(key)
        if session is None:
            return self._cache_session(await self._store.open(self._fresh(key, source, now))), False
        is_delivered = source.person is None
        if not is_delivered:  # the name of a thread contains the channel that delivers its answers
            channel = unquote(build_outbox_target(session.thread_id).partition("/")[0])
            is_delivered = any(one.value == channel for one in self._config.get_connected_platforms())
        policy = self.reset_policy(session, source)
        if not is_delivered or ends_session(policy, active_at=session.active_at, now=now):
            return await self.begin_anew(key, source), True
        return session, False

    def activity(self, session: ChatSession, source: SessionSource) -> "Activity | None":
        """Return the activity to store for a message, or None if the stored activity is recent enough."""
        now, there = self._clock.now(), (session.source.get("platform"), session.source.get("chat_id"))
        # A session of linked chats may have been active in another chat.
        is_here = source.person is None or there == (source.platform.value, source.chat_id)
        if is_here and now - session.active_at < _TOUCH_AFTER_MS:
            return None
        return Activity(session.session_key, session.thread_id, source.to_dict(), now)

    def note(self, activity: "Activity") -> None:
        """Update the cached session after its activity has been stored."""
        if activity.written is not None:
            self._cache_session(activity.written)
            self._addresses.pop(activity.thread_id, None)

    async def chosen_agent(self, source: SessionSource) -> str | None:
        """Return the agent that was chosen with `/agent` in a chat, or None if no agent was chosen."""
        session = await self.load(self._key_of_choice(source))
        chosen = None if session is None else session.settings.get(_CHOSEN)
        return str(chosen) if chosen else None

    async def choose_agent(self, source: SessionSource, agent: str | None) -> None:
        """Store the agent that was chosen with `/agent` in a chat.

        If `agent` is None, the routes choose the agent again.
        """
        key, place = self._key_of_choice(source), replace(source, agent=None)

        def choosing(session: ChatSession) -> ChatSession:
            by_name = {name: value for name, value in session.settings.items() if name != _CHOSEN}
            return replace(session, settings=by_name if agent is None else {**by_name, _CHOSEN: agent})

        await self.of(key, place)
        await self.changed(key, choosing)

    def label(self, source: SessionSource) -> str:
        """Return the prefix that names the agent of an answer, or "" if the chat has only one agent."""
        is_needed = is_one_of_several(self._config.routes, source)
        return label(source.agent) if source.agent is not None and is_needed else ""

    def _key_of_choice(self, source: SessionSource) -> str:
        return self._config.session_key(replace(source, agent=None))

    async def load(self, key: str) -> ChatSession | None:
        """Return the session with this key, or None if the session does not exist."""
        known_session = self._known.get(key)
        if known_session is None:
            known_session = await self._store.load(key)
        return None if known_session is None else self._cache_session(known_session)

    async def begin_anew(self, key: str, source: SessionSource) -> ChatSession:
        """Bind the session to a new thread.

        The old thread can be resumed later.
        """
        self._cache_session(await self._store.open(self._fresh(key, source, self._clock.now())))
        thread_id = self._new_thread(source)
        return await self.bind(key, thread_id, title=None)

    async def bind(self, key: str, thread_id: str, *, title: str | None) -> ChatSession:
        """Bind the session to another thread."""
        now = self._clock.now()
        return await self.changed(
            key, lambda one: replace(one, thread_id=thread_id, title=title, active_at=now)
        )

    async def threads(self, key: str) -> tuple[SessionThread, ...]:
        """Return the current and earlier threads of a session, the most recently active thread first."""
        return await self._store.threads(key)

    async def hidden(self, thread_id: str) -> Mapping[str, Sequence[str]]:
        """Map the id of each undone run of a thread to the ids of the messages that the run read."""
        address = await self.address(thread_id)
        session = None if address is None else await self.load(address[0])
        if session is None or not session.settings.get(_HIDES):
            return {}
        row = await self.load(_hidden_key(thread_id))
        return {} if row is None else row.settings.get(_HIDDEN, {})

    async def hide(self, session: ChatSession, runs: Mapping[str, Sequence[str]]) -> bool:
        """Hide runs of a session's thread from later runs of the thread.

        `runs` maps the id of each run to the ids of the messages that the run read. Return False if the
        thread would have more than `MAX_HIDDEN` hidden runs.
        """
        thread_id, source = session.thread_id, SessionSource.from_dict(session.source)
        if len({*await self.hidden(thread_id), *runs}) > MAX_HIDDEN:
            return False
        key, more = (
            _hidden_key(thread_id),
            {run_id: list(requested_values) for run_id, requested_values in runs.items()},
        )
        await self._store.open(self._fresh(key, source, self._clock.now()))
        await self.changed(
            key, lambda one: replace(one, settings={_HIDDEN: {**one.settings.get(_HIDDEN, {}), **more}})
        )
        await self.changed(
            session.session_key, lambda one: replace(one, settings={**one.settings, _HIDES: True})
        )
        return True

    async def changed(self, key: str, change: Callable[[ChatSession], ChatSession]) -> ChatSession:
        """Apply a change to a session, and return the changed session.

        `change` is called again after a concurrent change of the session.

        Raises:
            UnknownThread: The session does not exist.
        """
        for _ in range(_TRIES):
            session = await self.load(key)
            if session is None:
                raise UnknownThread(f"there is no session {key!r}", value=key)
            after = change(session)
            if after == session:
                return session
            self._known.pop(key, None)  # if this fails, the change may have been stored nevertheless
            try:
                return self._cache_session(await self._store.put(after))
            except VersionConflict:
                continue
        raise VersionConflict(
            f"session {key!r} was changed by other writers during each of {_TRIES} attempts to change it",
            value=key,
        )

    async def follow(self, platform: Platform, account: str, chat_id: str, new_id: str) -> int:
        """Move a group's sessions to the group's new id, and return the number of moved sessions.

        A session is not moved if it already exists under the new id.
        """
        old, new = (
            build_session_key(SessionSource(platform=platform, chat_type="group", chat_id=group))
            for group in (chat_id, new_id)
        )
        moved = 0
        # Find the session with this key, and the sessions whose keys begin with this key and a colon.
        first = await self._store.load(old)
        sessions, after = [] if first is None else [first], f"{old}:"
        while page := await self._store.sessions(after=after):
            sessions += [session for session in page if session.session_key.startswith(f"{old}:")]
            after = page[-1].session_key
            if not after.startswith(f"{old}:"):
                break
        for session in sessions:
            if session.source.get("account", "default") == account:
                there = {**session.source, "chat_id": new_id}
                moved += await self._store.rename(
                    session.session_key, new + session.session_key[len(old) :], there
                )
        home = await self._store.load(f"home:{platform.value}:{account}")
        if home is not None and home.source.get("chat_id") == chat_id:
            there = {**home.source, "chat_id": new_id}
            await self.changed(home.session_key, lambda one: replace(one, source=there))
        self._known.clear()
        self._addresses.clear()
        return moved

    async def join(self, address: ChatAddress, person: str) -> None:
        """Move the conversations of a direct chat to the person who writes in the chat.

        All linked chats of a person share one conversation with each agent. If the person already has a
        conversation with an agent, the chat's own conversation is not moved. The chat uses its own
        conversations again after `/unlink`.
        """
        agents = dict.fromkeys((None, *(rule.agent for rule in self._config.routes)))
        for agent in agents:
            alone = SessionSource(platform=Platform(address.platform), chat_id=address.chat_id, agent=agent)
            key = self._config.session_key(alone)
            session = await self._store.load(key)
            if session is not None:
                shared = self._config.session_key(replace(alone, person=person))
                await self._store.rename(key, shared, {**session.source, "person": person})
        self._known.clear()
        self._addresses.clear()

    async def find_place(
        self, thread_id: str, messages: Sequence[Message]
    ) -> tuple[str, SessionSource] | None:
        """Return the session key of a run's thread, and the chat that gets the run's answer.

        In linked chats, the answer goes to the chat of the last message that the run answers.
        """
        result = await self.address(thread_id)
        if result is None or result[1].person is None:
            return result
        ids = [
            inbound_id
            for message in messages
            if (inbound_id := parse_inbound_id(message.id or "")) is not None
        ]
        last = await self._intake_log.messages(ids[-1:]) if ids else ()
        source = last[0].body.get("source") if last else None
        return (result[0], SessionSource.from_dict(source)) if source else result

    async def address(self, thread_id: str) -> tuple[str, SessionSource] | None:
        """Return the session key and the chat of a thread, or None if the thread has no session."""
        known_address = self._addresses.get(thread_id)
        if known_address is not None:
            self._addresses.move_to_end(thread_id)
            return known_address
        thread = await self._store.thread(thread_id)
        session = None if thread is None else await self._store.load(thread.session_key)
        if session is None:
            return None
        result = session.session_key, SessionSource.from_dict(session.source)
        self._addresses[thread_id] = result
        if len(self._addresses) > _MAX_ADDRESSES:
            self._addresses.popitem(last=False)
        return result

    def _cache_session(self, session: ChatSession) -> ChatSession:
        """Cache a stored session, and return the newest known version."""
        known_session = self._known.get(session.session_key)
        if self._is_shared or (known_session is not None and known_session.revision > session.revision):
            return known_session or session
        self._known[session.session_key] = session
        self._known.move_to_end(session.session_key)
        if len(self._known) > _MAX_ADDRESSES:
            self._known.popitem(last=False)
        return session

    def _fresh(self, key: str, source: SessionSource, now: int) -> ChatSession:
        return ChatSession(
            session_key=key, thread_id=self._new_thread(source), source=source.to_dict(), active_at=now
        )

    def _new_thread(self, source: SessionSource) -> str:
        return thread_name(source.platform.value, source.account, self._new_id(), source.agent)

    def reset_policy(self, session: ChatSession, source: SessionSource) -> SessionResetPolicy:
        """Return the reset policy that the session chose, or the configured policy."""
        chosen = session.settings.get("reset")
        if chosen:
            return SessionResetPolicy(**{**chosen, "mode": ResetMode(chosen["mode"])})
        return self._config.get_reset_policy(source.platform, source.chat_type, source.chat_id)

    async def quiet_hours(self, address: ChatAddress) -> QuietHours | None:
        """Return the quiet hours that the chat chose, or the configured quiet hours."""
        session = await self.load(_quiet_key(address))
        chosen = None if session is None else session.settings.get("quiet")
        if chosen is not None:
            return None if chosen == QUIET_OFF else await asyncio.to_thread(QuietHours.parse, chosen)
        return self._config.get_rules(Platform(address.platform), address.chat_id).quiet

    async def choose_quiet(self, source: SessionSource, chosen: str | None) -> None:
        """Set the quiet hours of a chat. `QUIET_OFF` turns quiet hours off.

        If `chosen` is None, the quiet hours in the configuration file apply again.
        """
        key = _quiet_key(source.address)
        settings = {} if chosen is None else {"quiet": chosen}
        await self._store.open(self._fresh(key, source, self._clock.now()))
        await self.changed(key, lambda one: replace(one, settings=settings))


def _quiet_key(address: ChatAddress) -> str:
    return f"quiet:{address.name}"


def _hidden_key(thread_id: str) -> str:
    return f"hidden:{thread_id}"


def ends_session(policy: SessionResetPolicy, *, active_at: int, now: int) -> bool:
    """Return whether a session that was last active at `active_at` must be reset at the time `now`.

    A daily reset uses the local time zone.
    """
    idle = policy.mode in (ResetMode.IDLE, ResetMode.BOTH)
    if idle and now - active_at >= milliseconds(timedelta(minutes=policy.idle_minutes)):
        return True
    if policy.mode not in (ResetMode.DAILY, ResetMode.BOTH):
        return False
    moment = datetime.fromtimestamp(now / 1_000).astimezone()
    boundary = moment.replace(hour=policy.at_hour, minute=0, second=0, microsecond=0)
    if boundary > moment:
        boundary -= timedelta(days=1)
    return active_at < int(boundary.timestamp() * 1_000) <= now


def find_chat(tx: Transaction, thread_id: str, inbound_ids: Sequence[int]) -> SessionSource | None:
    """Return the chat that gets the answer to one or more inbound messages.

    The answer goes to the chat of the last message. If the last message is no longer stored, the answer goes
    to the chat of the session. Return None if the store contains no chat for the thread.
    """
    named = tx.chats.inbound_by_id(inbound_ids[-1:], readable=True) if inbound_ids else []
    source = named[0].body.get("source") if named else None
    if not source:
        thread = tx.chats.thread(thread_id)
        session = None if thread is None else tx.chats.session(thread.session_key)
        source = None if session is None else session.source
    return SessionSource.from_dict(source) if source else None
