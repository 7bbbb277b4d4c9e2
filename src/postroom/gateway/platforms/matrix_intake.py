"""Incoming events from the homeserver: the position in its stream, and its messages in order."""

import asyncio
import json
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from postroom.contracts.errors import ConfigError, ServerUnavailable
from postroom.contracts.messages import Json
from postroom.gateway.events import Attachment, MessageEvent
from postroom.gateway.platforms import matrix_wire as wire
from postroom.gateway.platforms.base import Inbound
from postroom.gateway.platforms.matrix_http import Homeserver
from postroom.log import get_logger

_LOG = get_logger(__name__)


class SyncPosition:
    """A position in the stream. It belongs to one user, and is useless to others."""

    def __init__(self, path: str | None) -> None:
        self._path = Path(path) if path else None
        self._user_id = ""
        self.since: str | None = None
        self.at = 0
        """The time at which this position was reached."""
        self.told: set[str] = set()
        """Encrypted rooms that know that we cannot read them."""

    async def load(self, user_id: str) -> None:
        """Use the state in the file, unless this process has a newer one.

        Raises:
            ConfigError: the file is there and cannot be read, or its folder cannot be written.
        """
        if self._user_id == user_id and self.since is not None:
            return
        self._user_id = user_id
        if self._path is None:
            return
        try:
            kept = await asyncio.to_thread(_read, self._path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                "Matrix: the file with the stream position cannot be used",
                value=str(self._path),
                remedy="correct the file and its folder, or remove the file to begin with new messages",
            ) from error
        if kept is not None and kept[0] == user_id:
            _, self.since, self.at, self.told = kept

    async def move(self, since: str, at: int) -> None:
        """Advance to a position. If the file cannot be written, later messages may arrive twice."""
        moved = since != self.since
        self.since, self.at = since, at
        if self._path is None or not moved:
            return
        kept = {"user_id": self._user_id, "since": since, "at": at, "told": sorted(self.told)}
        try:
            await asyncio.to_thread(_write, self._path, json.dumps(kept))
        except OSError as error:
            _LOG.warning("matrix.place_not_kept", reason=type(error).__name__)


def _read(path: Path) -> tuple[str, str, int, set[str]] | None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"{path.parent} cannot be written")
    if not path.exists():
        return None
    kept = json.loads(path.read_text(encoding="utf-8"))
    user_id, since, at = kept["user_id"], kept["since"], kept["at"]
    if not isinstance(user_id, str) or not isinstance(since, str) or not isinstance(at, int):
        raise TypeError("no place")
    return user_id, since, at, set(map(str, kept["told"]))


def _write(path: Path, text: str) -> None:
    """Write the whole file or leave the old one; only we may read it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


_UNREADABLE = (
    "This room is encrypted, and I cannot read encrypted messages. Please write to me in a room "
    "without encryption."
)
_GAP_PAGES = 50
"""Pages of a hundred events that are requested to fill one gap."""
_SKEW_MS = 3_600_000
"""The possible clock difference of homeservers; events older than our last round by more were known then."""
_NOT_THERE = (400, 403, 404)


class Intake:
    """Processes batches in order. A repeated event is handed over again."""

    def __init__(
        self,
        home: Homeserver,
        position: SyncPosition,
        me: wire.Ourselves,
        *,
        accept: Callable[[MessageEvent], Awaitable[None]],
        take_in: Callable[[Json, Callable[[], Awaitable[None]]], Awaitable[None]],
        inbound: Callable[[], Inbound | None],
    ) -> None:
        self.me = me
        self.rooms: dict[str, wire.Room] = {}
        self.knows_rooms = False
        """Whether all rooms were received since the start."""
        self.insists = True
        """Whether a batch waits for what cannot be looked up; without it, the same is taken without."""
        self._home = home
        self._position = position
        self._accept = accept
        self._inbound = inbound
        self._take_in = take_in

    def begin(self, batch: Mapping[str, Any]) -> None:
        """Learn the rooms; earlier messages in them are history."""
        for room_id, info in wire.rooms_of(batch, "join"):
            self._learn(room_id, info)
        self.knows_rooms = True

    async def take(self, batch: Mapping[str, Any]) -> None:
        """Hand over the events of a batch, in order; all are stored when this returns.

        Raises:
            StoreError: A message could not be stored; the batch must be processed again.
            ServerUnavailable: Related data could not be requested.
        """
        joined = wire.rooms_of(batch, "join")
        rooms = [self._learn(room_id, info) for room_id, info in joined]
        self.knows_rooms = True
        for room, (_, info) in zip(rooms, joined, strict=True):
            await self._take_room(room, info)
        for room_id, _ in wire.rooms_of(batch, "leave"):
            self.rooms.pop(room_id, None)

    def _learn(self, room_id: str, info: Mapping[str, Any]) -> wire.Room:
        room = self.rooms.setdefault(room_id, wire.Room(room_id=room_id))
        for event in (*wire.events_of(info, "state"), *wire.events_of(info, "timeline")):
            room.learn(event)
        room.count(info.get("summary"))
        return room

    async def _take_room(self, room: wire.Room, info: Mapping[str, Any]) -> None:
        events = wire.events_of(info, "timeline")
        belonged = len(wire.after_our_invitation(events, self.me)) == len(events)
        timeline = info.get("timeline")
        if belonged and isinstance(timeline, dict) and timeline.get("limited") is True:
            events = [*await self._gap(room.room_id, timeline.get("prev_batch")), *events]
        for event in wire.after_our_invitation(events, self.me):
            await self._take_in(event, partial(self._take_event, event, room))

    async def _gap(self, room_id: str, before: object) -> list[object]:
        """Return the messages in a room between our last round and this one, the oldest first."""
        found: list[object] = []
        floor = self._position.at - _SKEW_MS
        for _ in range(_GAP_PAGES):
            if not isinstance(before, str) or self._position.since is None:
                break
            query = {"dir": "b", "from": before, "to": self._position.since, "limit": "100"}
            answer = await self._home.ask("GET", wire.path_of("rooms", room_id, "messages", query=query))
            if not answer.ok and answer.status not in _NOT_THERE:
                raise ServerUnavailable(f"a gap could not be filled: {answer.said()}")
            page = answer.body.get("chunk") if answer.ok else None
            if not isinstance(page, list) or not page or wire.all_older(page, floor):
                break
            found.extend(page)
            before = answer.body.get("end")
        else:
            _LOG.warning("matrix.gap_is_too_long", room=room_id, events=len(found))
        return found[::-1]

    async def _take_event(self, event: object, room: wire.Room) -> None:
        """Hand over one event.

        Raises:
            Malformed: It is not as the protocol says.
        """
        if room.joined is None:
            await self._count_members(room)
        heard = wire.understood(event, room, self.me)
        if heard is not None:
            await self._hand_over(heard, room)

    async def _hand_over(self, heard: wire.Heard, room: wire.Room) -> None:
        event = heard.event
        if heard.kind is wire.Kind.ENCRYPTED:
            await self._tell_unreadable(room)
        elif heard.kind is wire.Kind.MESSAGE:
            await self._look_up_answered(event, room)
            await self._accept(event)
        elif (inbound := self._inbound()) is not None and event.source is not None:
            if heard.kind is wire.Kind.TAKEN_BACK:
                await inbound.deleted(event.source, event.message_id or "")
            elif await self._is_their_own(event, room):
                await inbound.edited(event)
            else:
                raise wire.Malformed("an edit of another user's message")

    async def _is_their_own(self, event: MessageEvent, room: wire.Room) -> bool:
        """Return whether an edit is by the original sender: anybody can send one for any message."""
        old = wire.quoted(await self._event(room, event.message_id or ""))
        return old is not None and event.source is not None and old[0] == event.source.user_id

    async def _look_up_answered(self, event: MessageEvent, room: wire.Room) -> None:
        if event.reply_to_message_id is None:
            return
        old = wire.quoted(await self._event(room, event.reply_to_message_id))
        if old is not None:
            event.reply_to_text, event.reply_to_author = old[1], room.names.get(old[0]) or old[0]
            if old[0] != self.me.user_id:
                event.media += Attachment.foreign(file for file in old[2] if file not in event.media)
            event.addressed = event.addressed or old[0] == self.me.user_id

    async def _event(self, room: wire.Room, event_id: str) -> Mapping[str, Any] | None:
        return await self._looked_up(wire.path_of("rooms", room.room_id, "event", event_id))

    async def _count_members(self, room: wire.Room) -> None:
        found = await self._looked_up(wire.path_of("rooms", room.room_id, "joined_members"))
        joined = found.get("joined") if found is not None else None
        room.joined = len(joined) if isinstance(joined, dict) else 3

    async def _looked_up(self, path: str) -> Mapping[str, Any] | None:
        answer = await self._home.ask("GET", path)
        if not answer.ok and answer.status not in _NOT_THERE and self.insists:
            raise ServerUnavailable(f"a request failed: {answer.said()}")
        return answer.body if answer.ok else None

    async def _tell_unreadable(self, room: wire.Room) -> None:
        room.encrypted = True
        if room.room_id in self._position.told:
            return
        content: dict[str, Json] = {"msgtype": "m.notice", "body": _UNREADABLE, "m.mentions": {}}
        txn = wire.transaction_id("unreadable", room.room_id)
        path = wire.path_of("rooms", room.room_id, "send", "m.room.message", txn)
        answer = await self._home.ask("PUT", path, content)
        if answer.ok:
            self._position.told.add(room.room_id)
