"""Updates from Discord that are not stored yet: held in order, and retried until they are.

Discord has no acknowledgements, so received updates must be kept here. One update at a time is handed over,
in the order of the gateway; a message that cannot be stored now delays later ones.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from postroom.contracts.errors import ConfigError
from postroom.contracts.messages import Json
from postroom.gateway.config import PlatformConfig
from postroom.gateway.events import ButtonPress, MessageEvent
from postroom.gateway.platforms import discord_wire as wire
from postroom.gateway.platforms.base import Inbound
from postroom.gateway.platforms.discord_wire import Channel, Me, RestFailure, note_of
from postroom.gateway.platforms.options import refuse_address, secret_remedy
from postroom.log import get_logger

ChannelId = Annotated[str, Meta(pattern=r"^[0-9]{1,20}\Z", extra={"write": "a text of digits"})]


class DiscordOptions(PlatformConfig, frozen=True, kw_only=True):
    """The table [platforms.discord]. The token is the bot's."""

    base_url: str = "https://discord.com/api/v10"
    """The REST API; it holds for the whole process, as the library has it."""
    cdn_url: str = "https://cdn.discordapp.com"
    """The host of files; no other host is asked."""
    backfill: bool = True
    """Whether messages from the bot's absence are requested."""
    backfill_limit: Annotated[int, Meta(ge=1, le=100_000)] = 500
    """The number of messages requested in one channel after one absence."""
    backfill_minutes: Annotated[int, Meta(ge=0, le=100_000)] = 60
    """The age of the oldest messages that the first read of `channels` fetches."""
    channels: tuple[ChannelId, ...] = ()
    """The ids of the channels that are read at the start."""
    max_held: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    """The updates in memory that are not stored yet."""
    timeout_seconds: Annotated[float, Meta(ge=0.1, le=600)] = 30
    """How long one answer of Discord may take."""

    def __post_init__(self) -> None:
        refuse_address("base_url", self.base_url)
        refuse_address("cdn_url", self.cdn_url)


def bot_token(token: str | None) -> str:
    """Return a bot's token in the form for requests.

    Raises:
        ConfigError: The token is missing, or has impossible characters. It is not shown.
    """
    kept = (token or "").strip().removeprefix("Bot ").strip()
    if not kept or not kept.isascii() or not kept.isprintable() or " " in kept:
        raise ConfigError(
            "the Discord bot's token is missing or malformed",
            remedy=secret_remedy(
                "token", "the token from Bot → Reset Token at https://discord.com/developers/applications"
            ),
        )
    return kept


_LOG = get_logger(__name__)
ABSENCE = "ABSENCE"
"""The marker in the queue for a new session: earlier messages are requested."""
MOST_MARKS = 200
MOST_PLACES = 5_000
PAGE = 100
TAKEN = "Got it."


class Intake:
    """Holds updates until they are kept."""

    def __init__(
        self,
        options: DiscordOptions,
        *,
        request: Callable[..., Awaitable[Any]],
        accept: Callable[[MessageEvent], Awaitable[None]],
        take_until_kept: Callable[[Json, Callable[[], Awaitable[None]]], Awaitable[None]],
        inbound: Callable[[], Inbound | None],
    ) -> None:
        self.me: Me | None = None
        self._request = request
        self._accept = accept
        self._take_until_kept = take_until_kept
        self._inbound = inbound
        self._options = options
        self._held: deque[tuple[str, object]] = deque()
        self._marks: OrderedDict[str, str] = OrderedDict()
        self._channels: OrderedDict[str, Channel] = OrderedDict()
        self._arrived, self._room, self._settled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._room.set()
        self._settled.set()

    def hold(self, name: str, data: object) -> None:
        """Take in an update; it is handed over after those before it."""
        self._held.append((name, data))
        self._settled.clear()
        self._arrived.set()
        if self.full:
            self._room.clear()

    def remember(self, channel_id: str, message_id: str) -> None:
        """Note the newest known message of a channel; later ones are requested after an absence."""
        known = self._marks.pop(channel_id, "0")
        self._marks[channel_id] = max(known, message_id, key=int)
        while len(self._marks) > MOST_MARKS:
            self._marks.popitem(last=False)

    def watch(self, now: int) -> None:
        """Note the configured channels without known messages."""
        since = wire.id_at(now - self._options.backfill_minutes * 60_000)
        for channel_id in self._options.channels:
            if channel_id not in self._marks:
                self.remember(channel_id, since)

    @property
    def full(self) -> bool:
        """Whether memory is full and holds no further updates."""
        return len(self._held) >= self._options.max_held

    async def room(self) -> None:
        """Return when at least half of the room is free."""
        await self._room.wait()

    async def settled(self, within_seconds: float) -> None:
        """Return when all updates are stored, or the time has passed."""
        try:
            async with asyncio.timeout(within_seconds):
                await self._settled.wait()
        except TimeoutError:
            _LOG.warning("discord.left_unkept", updates=len(self._held))

    async def run(self) -> None:
        """Hand over held updates, without end. If cancelled midway, it starts with the same update again."""
        while True:
            await self._arrived.wait()
            while self._held:
                name, data = self._held[0]
                await self._kept(name, data)
                self._held.popleft()
                if len(self._held) <= self._options.max_held // 2:
                    self._room.set()
            self._arrived.clear()
            self._settled.set()

    async def _kept(self, name: str, data: object) -> None:
        """Hand one update over, and note that its channel is known up to it."""
        await self._take_until_kept({"update": name, "data": data}, partial(self._take, name, data))
        if name != "MESSAGE_CREATE":
            return
        found = data if isinstance(data, dict) else {}
        channel_id, message_id = found.get("channel_id"), found.get("id")
        if wire.is_id(channel_id) and wire.is_id(message_id):
            self.remember(str(channel_id), str(message_id))

    async def _take(self, name: str, data: object) -> None:
        match name:
            case "MESSAGE_CREATE":
                if (event := await self._event(data)) is not None:
                    await self._accept(event)
            case "MESSAGE_UPDATE":
                await self._edited(data)
            case "MESSAGE_DELETE" | "MESSAGE_DELETE_BULK":
                await self._deleted(data)
            case "INTERACTION_CREATE":
                await self._pressed(data)
            case "CHANNEL_UPDATE" | "THREAD_UPDATE":
                self._forget(data)
            case _:
                await self._caught_up()

    async def _event(self, data: object) -> MessageEvent | None:
        if self.me is None or not wire.is_message(data, self.me):
            return None
        return wire.event_of(data, await self._channel(data), self.me)

    async def _edited(self, data: object) -> None:
        inbound = self._inbound()
        if inbound is None or not wire.is_edit(data):
            return
        if (event := await self._event(data)) is not None:
            await inbound.edited(event)

    async def _deleted(self, data: object) -> None:
        inbound = self._inbound()
        if inbound is None or self.me is None:
            return
        gone = wire.deleted_in(data)
        channel_id, _ = wire.ids_of(data)
        source = wire.source_of(channel_id, await self._channel(data), self.me.user_id)
        for message_id in gone:
            await inbound.deleted(source, message_id)

    async def _pressed(self, data: object) -> None:
        inbound = self._inbound()
        if inbound is None or self.me is None:
            return
        interaction_id, token = wire.callback_of(data)
        pressed = wire.press_of(data, await self._channel(data), self.me)
        if pressed is None:
            return
        if isinstance(pressed, ButtonPress):
            note = await inbound.pressed(pressed)
        else:
            await self._accept(pressed)
            note = TAKEN
        try:
            await self._request(
                "POST",
                "/interactions/{interaction_id}/{webhook_token}/callback",
                json=note_of(note),
                interaction_id=interaction_id,
                webhook_token=token,
            )
        except RestFailure as failure:  # it was taken: only the note is missing, most often for being late
            _LOG.info("discord.note_not_shown", status=failure.status, code=failure.code)

    # The place of a message.

    async def _channel(self, data: object) -> Channel:
        """Return the channel of an update; Discord is asked once for each, and again when it changed."""
        channel_id, guild_id = wire.ids_of(data)
        if guild_id is None:
            return self._known(channel_id, Channel(chat_type="dm"))
        try:
            return await self._looked_up(channel_id)
        except RestFailure as failure:
            if failure.status not in (403, 404):
                raise
            return Channel(chat_type="channel", guild=guild_id)

    async def _looked_up(self, channel_id: str) -> Channel:
        if (known := self._channels.get(channel_id)) is not None:
            return self._known(channel_id, known)
        found = await self._request("GET", "/channels/{channel_id}", channel_id=channel_id)
        return self._known(channel_id, wire.channel_of(found))

    def _known(self, channel_id: str, channel: Channel) -> Channel:
        self._channels[channel_id] = channel
        self._channels.move_to_end(channel_id)
        while len(self._channels) > MOST_PLACES:
            self._channels.popitem(last=False)
        return channel

    def _forget(self, data: object) -> None:
        channel_id = data.get("id") if isinstance(data, dict) else None
        if isinstance(channel_id, str):
            self._channels.pop(channel_id, None)

    # After an absence.

    async def _caught_up(self) -> None:
        """Request the messages after the mark of each known channel."""
        for channel_id in tuple(self._marks):
            try:
                await self._read_on(channel_id)
            except RestFailure as failure:
                if failure.status not in (403, 404):
                    raise
                self._marks.pop(channel_id, None)

    async def _read_on(self, channel_id: str) -> None:
        guild_id = (await self._looked_up(channel_id)).guild
        left = self._options.backfill_limit
        while left > 0:
            if (mark := self._marks.get(channel_id)) is None:
                return  # its mark was dropped meanwhile; it is never read from the beginning
            asked = min(left, PAGE)
            page = await self._request(
                "GET",
                "/channels/{channel_id}/messages",
                query={"after": mark, "limit": str(asked)},
                channel_id=channel_id,
            )
            messages = wire.in_order(page)
            for message in messages:
                told = message | {"channel_id": channel_id} | ({"guild_id": guild_id} if guild_id else {})
                await self._kept("MESSAGE_CREATE", told)
            left -= asked
            if len(messages) < asked:
                return
        _LOG.warning("discord.backfill_cut", channel_id=channel_id, limit=self._options.backfill_limit)
