"""Where a storm of messages comes from: the wire of each channel, with several people who say text and files there."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2

from channels import fake_discord, fake_slack, fake_telegram
from channels.http_room import calling
from platform_tables import table_of
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.records import replace
from postroom.gateway.capabilities import RateLimits
from postroom.gateway.config import PlatformConfig
from postroom.gateway.platforms.base import BasePlatformAdapter
from postroom.gateway.platforms.discord import DiscordAdapter, DiscordOptions
from postroom.gateway.platforms.slack import SlackAdapter, SlackOptions
from postroom.gateway.platforms.telegram import TelegramOptions
from postroom.gateway.platforms.web import WebAdapter, WebOptions
from postroom.gateway.session import Platform
from postroom.testing import ManualClock

TYPES = {"photo": "image/png", "voice": "audio/ogg", "album": "image/png", "document": "application/pdf"}
PEOPLE = ("ann", "ben", "cat", "dan")


@dataclass(frozen=True, kw_only=True)
class Said:
    """One message: of whom, which words, and the files with it."""

    number: int
    person: int
    kind: str
    words: str
    files: tuple[bytes, ...] = ()

    @property
    def names(self) -> list[str]:
        return [f"{self.number}-{position}.bin" for position, _ in enumerate(self.files)]


class Place(Protocol):
    """A channel in front of the fake of its platform."""

    config: PlatformConfig
    adapter: BasePlatformAdapter

    async def say(self, said: list[Said]) -> int:
        """Send all of them at once; return how many messages the platform makes of them."""
        ...

    def shown(self) -> list[str]:
        """Return the messages that people got."""
        ...


def _hurried(kind: type[Any], config: PlatformConfig, clock: ManualClock) -> Any:
    """Return an adapter without limits; other tests cover delays by limits."""

    class Hurried(kind):
        capabilities = replace(kind.capabilities, rates=RateLimits())

    return Hurried(config, clock=clock, timer=clock)


class TelegramPlace:
    """A group in which everybody mentions the bot; an album is a message for each picture."""

    def __init__(self, fake: fake_telegram.FakeTelegram, clock: ManualClock) -> None:
        self._fake = fake
        allow = {"*": PersonRole.MEMBER}
        self.config = table_of(TelegramOptions, token=fake_telegram.TOKEN, allow=allow, base_url=fake.url)
        self.adapter = _hurried(fake_telegram.TelegramAdapter, self.config, clock)

    async def say(self, said: list[Said]) -> int:
        updates = [update for one in said for update in self._updates(one)]
        self._fake.feed(*updates)
        return len(updates)

    def shown(self) -> list[str]:
        return [fake_telegram.shown_text(one["text"]) for one in self._fake.messages.values()]

    def _updates(self, one: Said) -> list[dict[str, Any]]:
        sender = {"id": 1 + one.person, "is_bot": False, "first_name": PEOPLE[one.person]}
        mention = [{"type": "mention", "offset": 0, "length": 12}]
        if not one.files:
            parts = [{"text": f"@PostroomBot {one.words}", "entities": mention}]
        else:
            parts = [self._file(one, position) for position, _ in enumerate(one.files)]
            parts[0] |= {"caption": f"@PostroomBot {one.words}", "caption_entities": mention}
        numbers = [one.number * 10 + position for position, _ in enumerate(parts)]
        return [
            fake_telegram.update(
                number,
                message={
                    **fake_telegram.message(number),
                    **part,
                    "from": sender,
                    "chat": fake_telegram.GROUP,
                },
            )
            for number, part in zip(numbers, parts, strict=True)
        ]

    def _file(self, one: Said, position: int) -> dict[str, Any]:
        file_id, name = f"f{one.number}-{position}", one.names[position]
        self._fake.files[file_id] = {"file_path": f"files/{name}"}
        self._fake.contents[f"files/{name}"] = one.files[position]
        file = {"file_id": file_id, "file_name": name, "mime_type": TYPES[one.kind]}
        if one.kind == "photo":
            return {"photo": [{**file, "width": 9, "height": 9}]}
        if one.kind == "album":
            return {"photo": [{**file, "width": 9, "height": 9}], "media_group_id": f"album{one.number}"}
        return {one.kind: file}


class SlackPlace:
    """A channel in which everybody mentions the bot."""

    def __init__(self, fake: fake_slack.FakeSlack, clock: ManualClock) -> None:
        self._fake = fake
        self.config = table_of(
            SlackOptions,
            token=fake_slack.BOT_TOKEN,
            api_key=fake_slack.APP_TOKEN,
            allow={"*": PersonRole.MEMBER},
            base_url=fake.url,
        )
        self.adapter = _hurried(SlackAdapter, self.config, clock)

    async def say(self, said: list[Said]) -> int:
        [wire] = self._fake.live
        for one in said:
            files = [self._file(one, position) for position, _ in enumerate(one.files)]
            told = fake_slack.inbound(
                f"e{one.number}",
                f"<@{fake_slack.BOT}> {one.words}",
                f"1700000001.{one.number:06d}",
                user=f"U0{PEOPLE[one.person].upper()}",
                channel=fake_slack.CHANNEL,
                **({"files": files, "subtype": "file_share"} if files else {}),
            )
            await wire.say(told)
        return len(said)

    def shown(self) -> list[str]:
        return [one["text"] for one in self._fake.posted.values()]

    def _file(self, one: Said, position: int) -> dict[str, Any]:
        name, content = one.names[position], one.files[position]
        headers = {"Content-Type": TYPES[one.kind]}
        self._fake.files[f"/files/{name}"] = fake_slack.Fault(200, content, headers)
        address = self._fake.url.removesuffix("/api") + f"/files/{name}"
        file = {"id": f"F{name}", "name": name, "mimetype": TYPES[one.kind], "size": len(content)}
        more = {"subtype": "slack_audio"} if one.kind == "voice" else {}
        return {**file, **more, "url_private": address}


class DiscordPlace:
    """A room in which everybody mentions the bot."""

    def __init__(self, fake: fake_discord.FakeDiscord, clock: ManualClock) -> None:
        self._fake = fake
        self.config = table_of(
            DiscordOptions,
            token=fake_discord.TOKEN,
            allow={"*": PersonRole.MEMBER},
            base_url=fake.url,
            cdn_url=fake.cdn,
        )
        self.adapter = _hurried(DiscordAdapter, self.config, clock)

    async def say(self, said: list[Said]) -> int:
        me = fake_discord.ME
        for one in said:
            await self._fake.say(
                f"<@{me}> {one.words}",
                channel=fake_discord.ROOM,
                author=self._author(one.person),
                mentions=[fake_discord.PERSONS[me]],
                attachments=[self._file(one, position) for position, _ in enumerate(one.files)],
                flags=1 << 13 if one.kind == "voice" else 0,
            )
        return len(said)

    def shown(self) -> list[str]:
        return [one["content"] for one in self._fake.said]

    def _author(self, person: int) -> str:
        return (fake_discord.ALICE, fake_discord.BOB, fake_discord.CAROL, fake_discord.DAVE)[person]

    def _file(self, one: Said, position: int) -> dict[str, Any]:
        name, content = one.names[position], one.files[position]
        self._fake.files[f"/attachments/{name}"] = content
        where = {"id": f"{one.number}{position}", "url": f"{self._fake.cdn}/attachments/{name}"}
        return {**where, "filename": name, "size": len(content), "content_type": TYPES[one.kind]}


class WebPlace:
    """The chat page: each person has a separate chat and sends messages there in order."""

    def __init__(self, stack: AsyncExitStack, clock: ManualClock) -> None:
        self._stack = stack
        tokens = {name: f"the token of {name}, long enough" for name in PEOPLE}
        first, *others = PEOPLE
        people = {name: {"token": tokens[name]} for name in others}
        self.config = table_of(WebOptions, token=tokens[first], name=first, people=people)
        self.adapter = WebAdapter(self.config, clock=clock, timer=clock)
        self._tokens = tokens
        self._pages: dict[str, httpx2.AsyncClient] = {}

    async def _enter(self) -> None:
        for name, token in self._tokens.items():
            page = self._pages[name] = await self._stack.enter_async_context(calling(self.adapter))
            form = {"Sec-Fetch-Site": "same-origin"}
            answer = await page.post("/chat/sign-in", data={"token": token}, headers=form)
            assert answer.status_code == 303

    async def say(self, said: list[Said]) -> int:
        await self._enter()
        own = {"X-Postroom": "1", "Origin": "http://room.test", "Sec-Fetch-Site": "same-origin"}
        for one in said:
            page, ids = self._pages[PEOPLE[one.person]], []
            for name, content in zip(one.names, one.files, strict=True):
                stored = await page.post(f"/chat/files?name={name}", content=content, headers=own)
                ids.append(stored.json()["id"])
            body = {"id": f"message-{one.number}", "text": one.words, "files": ids}
            headers = {**own, "Content-Type": "application/json"}
            taken = await page.post("/chat/messages", content=json.dumps(body), headers=headers)
            assert taken.status_code == 202, taken.text
        return len(said)

    def shown(self) -> list[str]:
        logs = self.adapter._logs.values()
        return [entry.text for log in logs for entry in log._entries.values() if entry.kind == "answer"]


@asynccontextmanager
async def opened(platform: Platform, clock: ManualClock) -> AsyncIterator[Place]:
    """Open the place of a platform."""
    async with AsyncExitStack() as stack:
        match platform:
            case Platform.TELEGRAM:
                telegram = await stack.enter_async_context(fake_telegram.FakeTelegram().serving())
                yield TelegramPlace(telegram, clock)
            case Platform.SLACK:
                slack = await stack.enter_async_context(fake_slack.FakeSlack())
                yield SlackPlace(slack, clock)
            case Platform.DISCORD:
                discord = await stack.enter_async_context(fake_discord.FakeDiscord.serving())
                yield DiscordPlace(discord, clock)
            case _:
                yield WebPlace(stack, clock)
