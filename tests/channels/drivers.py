"""One interface over the fakes of all chat platforms, for the promises that every channel keeps.

A driver plays the people and the platform: it delivers messages, sends updates again, presses buttons, refuses,
loses answers and goes away. `lacks` names the abilities that a platform does not have, each with its reason.
"""

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from email.message import EmailMessage, Message
from pathlib import Path
from typing import Any, ClassVar

import httpx2

from channels import fake_discord, fake_slack, fake_telegram
from channels.fake_mail_servers import ADDRESS, PASSWORD, FakeMail, mail
from channels.fake_matrix import BOT, TOKEN, FakeMatrix, Fault
from channels.http_room import calling
from platform_tables import table_of
from postroom.gateway.config import PlatformConfig
from postroom.gateway.platforms.base import BasePlatformAdapter
from postroom.gateway.platforms.discord import DiscordAdapter, DiscordOptions
from postroom.gateway.platforms.email import EmailAdapter, EmailOptions
from postroom.gateway.platforms.matrix import MatrixAdapter, MatrixOptions
from postroom.gateway.platforms.slack import SlackAdapter, SlackOptions
from postroom.gateway.platforms.telegram import TelegramAdapter, TelegramOptions
from postroom.gateway.platforms.web import WebAdapter, WebOptions
from postroom.gateway.session import Platform
from postroom.testing import ManualClock
from postroom.testing.channels import ANN, BEN, EVE, PLAIN, ChannelDriver, Extra, Sent, Shown


class Driver(ChannelDriver):
    """A driver of a platform of postroom; it also has the abilities that only postroom's tests need."""

    unstorable: ClassVar[str] = "\ud800 \x00"
    """Characters that the platform passes on, and no store holds."""
    libraries: ClassVar[Mapping[str, str]] = {}
    """The libraries of its extra, each with the module that imports it."""
    unknown: ClassVar[str] = ""
    """How the part of a message is named that nobody knows."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.number = 0

    @abstractmethod
    async def begin(self) -> None:
        """Start the platform."""

    async def command(self, text: str, person: str = ANN) -> None:
        await self.say(text, person)

    async def press(self, card: Shown, label: str, person: str = ANN) -> None:
        raise NotImplementedError

    async def files(self) -> Sequence[tuple[str, bytes]]:
        """Return name and content of each file that the agent sent."""
        raise NotImplementedError

    def forget(self, shown: Shown) -> None:
        """Have a message of the agent be gone, so that it cannot be edited."""
        raise NotImplementedError


class TelegramDriver(Driver):
    platform, kind = Platform.TELEGRAM, TelegramAdapter
    libraries: ClassVar = {"httpx2": "telegram_api"}
    people: ClassVar = {ANN: "77", BEN: "78", EVE: "79"}
    lacks: ClassVar = {"deletes": "the Bot API does not tell a bot which messages were deleted"}
    secrets = (fake_telegram.TOKEN,)
    unknown = "a hologram"
    chat = "77"

    async def begin(self) -> None:
        self.fake = await self.stack.enter_async_context(fake_telegram.FakeTelegram().serving())

    def config(self, *, secret: str | None = None) -> PlatformConfig:
        token = secret or fake_telegram.TOKEN
        return table_of(TelegramOptions, token=token, allow=self.allow, base_url=self.fake.url)

    def _person(self, person: str) -> dict[str, Any]:
        return {"id": int(self.people[person]), "is_bot": False, "first_name": person.title()}

    def _chat(self, person: str, extra: Extra) -> dict[str, Any]:
        return fake_telegram.GROUP if extra.group else {"id": int(self.people[person]), "type": "private"}

    async def say(self, text: str, person: str = ANN, extra: Extra = PLAIN) -> Sent:
        self.number += 1
        if extra.group and extra.mention:
            text = f"@{fake_telegram.USERNAME} {text}"
        told = {"message_id": self.number, "date": 1_700_000_000, "from": self._person(person)}
        told |= {"chat": self._chat(person, extra), "text": text}
        if extra.group and extra.mention:
            length = len(fake_telegram.USERNAME) + 1
            told["entities"] = [{"type": "mention", "offset": 0, "length": length}]
        if extra.forward:
            author, told["text"] = extra.forward
            sender = {"id": 90, "is_bot": False, "first_name": author}
            told["forward_origin"] = {"type": "user", "sender_user": sender, "date": 1}
        if extra.reply:
            author, words = extra.reply
            sender = {"id": 91, "is_bot": False, "first_name": author}
            told["reply_to_message"] = {"message_id": 9_000, "date": 1, "chat": told["chat"]}
            told["reply_to_message"] |= {"from": sender, "text": words}
        if extra.file:
            name, content = extra.file
            told["document"] = self._file(name)
            self.fake.contents[f"files/{name}"] = content
            told["caption"] = told.pop("text")
            told["caption_entities"] = told.pop("entities", [])
        if extra.unknown:
            told["hologram"] = {"id": 1}
        self.fake.feed(fake_telegram.update(self.number, message=told))
        return Sent(text, person, str(self.number), told, self.number)

    async def album(self, names: Sequence[str], answered: str) -> None:
        """Send photos as one album that answers a message with a file."""
        old = {"message_id": 9_000, "date": 1, "chat": self._chat(ANN, PLAIN), "from": self._person(BEN)}
        for number, name in enumerate(names):
            self.number += 1
            told = {"message_id": self.number, "date": 1, "from": self._person(ANN), "media_group_id": "a1"}
            told |= {"chat": self._chat(ANN, PLAIN), "photo": [self._file(name) | {"width": 9, "height": 9}]}
            # Telegram may name the same file by another id in each message.
            file = self._file(answered, f"{answered}-{number}")
            self.fake.feed(
                fake_telegram.update(
                    self.number, message={**told, "reply_to_message": {**old, "document": file}}
                )
            )

    def _file(self, name: str, file_id: str | None = None) -> dict[str, Any]:
        self.fake.files[file_id or name] = {"file_path": f"files/{name}"}
        self.fake.contents[f"files/{name}"] = name.encode()
        return {"file_id": file_id or name, "file_name": name, "mime_type": "text/plain"}

    async def redeliver(self, sent: Sent) -> None:
        self.number += 1
        self.fake.feed(fake_telegram.update(self.number, message=sent.raw))

    def acknowledged(self, sent: Sent) -> bool:
        return sent.number in self.fake.acknowledged

    async def edit(self, sent: Sent, text: str) -> None:
        self.number += 1
        told = {**sent.raw, "text": text, "edit_date": 1_700_000_001}
        self.fake.feed(fake_telegram.update(self.number, edited_message=told))

    async def press(self, card: Shown, label: str, person: str = ANN) -> None:
        self.number += 1
        message = {"message_id": int(card.id), "date": 1, "chat": self._chat(ANN, PLAIN)}
        query = {"id": f"press{self.number}", "from": self._person(person), "message": message}
        query["data"] = dict(card.buttons)[label]
        self.fake.feed(fake_telegram.update(self.number, callback_query=query))

    def shown(self) -> Sequence[Shown]:
        return [self._shown(number, fields) for number, fields in sorted(self.fake.messages.items())]

    def _shown(self, number: int, fields: dict[str, Any]) -> Shown:
        text = str(fields.get("text") or fields.get("caption") or "")
        if fields.get("parse_mode"):
            text = fake_telegram.shown_text(text)
        rows = fields.get("reply_markup", {}).get("inline_keyboard", [])
        return Shown(
            str(number), text, tuple((one["text"], one["callback_data"]) for row in rows for one in row)
        )

    async def files(self) -> Sequence[tuple[str, bytes]]:
        parts = [part for call in self.fake.calls for part in call.files.values()]
        return [(name or "", content) for name, _, content in parts]

    async def malformed(self) -> None:
        self.number += 1
        self.fake.feed({"update_id": self.number, "message": {"message_id": "sevenfold"}})

    def looks(self) -> int:
        return len(self.fake.sent("getUpdates"))

    def tries(self) -> int:
        return len(self.fake.sent("sendMessage"))

    def limit(self) -> None:
        told = "Too Many Requests: retry later"
        self.fake.faults["sendMessage"].append(fake_telegram.Refusal(429, told, {"retry_after": self.wait_s}))

    def refuse(self) -> None:
        told = "Forbidden: bot was blocked by the user"
        self.fake.faults["sendMessage"].append(fake_telegram.Refusal(403, told))

    def lose_answer(self) -> None:
        self.fake.faults["sendMessage"].append(fake_telegram.LOST)

    def forget(self, shown: Shown) -> None:
        del self.fake.messages[int(shown.id)]

    async def go_away(self) -> None:
        self.fake.deaf = True
        self.fake.hang_up()

    async def come_back(self) -> None:
        self.fake.deaf = False


class SlackDriver(Driver):
    platform, kind = Platform.SLACK, SlackAdapter
    libraries: ClassVar = {"httpx2": "slack_library", "websockets": "slack_library"}
    people: ClassVar = {ANN: fake_slack.ANN, BEN: fake_slack.BEN, EVE: "U0EVE"}
    lacks: ClassVar = {"replies": "a Slack message replies in a thread, and quotes no other message"}
    secrets = (fake_slack.BOT_TOKEN, fake_slack.APP_TOKEN, fake_slack.TICKET)
    unknown = "a block of the type hologram"
    chat = fake_slack.DM

    async def begin(self) -> None:
        self.fake = await self.stack.enter_async_context(fake_slack.FakeSlack())
        self._envelopes: list[dict[str, Any]] = []

    def config(self, *, secret: str | None = None) -> PlatformConfig:
        return table_of(
            SlackOptions,
            token=secret or fake_slack.BOT_TOKEN,
            api_key=fake_slack.APP_TOKEN,
            allow=self.allow,
            base_url=self.fake.url,
        )

    async def opened(self, adapter: BasePlatformAdapter) -> None:
        """Send again what the app has not acknowledged."""
        envelopes, self._envelopes = self._envelopes, []
        for envelope in envelopes:
            if envelope["envelope_id"] not in self.fake.acked:
                await self._send(envelope)

    async def _send(self, envelope: dict[str, Any]) -> None:
        if self.fake.live:
            self._envelopes.append(envelope)
            await self.fake.live[-1].say(envelope)
        else:
            self.fake.held.append(envelope)

    async def _event(self, **words: Any) -> dict[str, Any]:
        self.number += 1
        made = {"type": "message", "channel_type": "im", "channel": self.chat, **words}
        envelope = fake_slack.envelope(f"e{self.number}", fake_slack.callback(made))
        await self._send(envelope)
        return envelope

    async def say(self, text: str, person: str = ANN, extra: Extra = PLAIN) -> Sent:
        ts = f"1700000001.{self.number + 1:06d}"
        told: dict[str, Any] = {"user": self.people[person], "ts": ts}
        if extra.group:
            told |= {"channel": fake_slack.CHANNEL, "channel_type": "channel"}
        elif person != ANN:
            told["channel"] = f"D0{person.upper()}"
        told["text"] = f"<@{fake_slack.BOT}> {text}" if extra.group and extra.mention else text
        if extra.forward:
            author, words = extra.forward
            told["text"] = ""
            told["attachments"] = [
                {"is_share": True, "is_msg_unfurl": True, "author_name": author, "text": words}
            ]
        if extra.file:
            name, content = extra.file
            self.fake.files[f"/files/{name}"] = fake_slack.Fault(200, content, {"Content-Type": "text/plain"})
            address = self.fake.url.removesuffix("/api") + f"/files/{name}"
            file = {"id": f"F{name}", "name": name, "mimetype": "text/plain", "url_private": address}
            files = {"files": [{**file, "size": len(content)}]}
            if extra.forward:
                told["attachments"][0] |= files
            else:
                told |= {**files, "subtype": "file_share"}
        if extra.unknown:
            told["blocks"] = [{"type": "hologram"}]
        envelope = await self._event(**told)
        return Sent(text, person, ts, envelope)

    async def command(self, text: str, person: str = ANN) -> None:
        """Send a slash command: Slack takes a line that begins with a slash for one, and sends no message."""
        self.number += 1
        form = fake_slack.slash("/postroom", text.removeprefix("/"), channel_id=self.chat)
        form |= {"user_id": self.people[person], "trigger_id": f"13345.738.{self.number}"}
        await self._send(fake_slack.envelope(f"e{self.number}", form, "slash_commands"))

    async def mention_below(self, words: Sequence[str], text: str) -> None:
        """Mention the bot in a thread in which others have said these words."""
        root = "1700000000.000001"
        thread = [
            {"type": "message", "user": "U0MAL", "text": word, "ts": f"1700000000.{number:06d}"}
            for number, word in enumerate(words, start=1)
        ]
        below = {"thread_ts": root, "parent_user_id": "U0MAL"}
        self.fake.threads[root] = [thread[0] | {"thread_ts": root, "reply_count": len(words)}]
        self.fake.threads[root] += [one | below for one in thread[1:]]
        told = {
            "user": self.people[ANN],
            "ts": "1700000001.000001",
            "thread_ts": root,
            "channel_type": "channel",
        }
        told |= {
            "channel": fake_slack.CHANNEL,
            "text": f"<@{fake_slack.BOT}> {text}",
            "parent_user_id": "U0MAL",
        }
        self.fake.threads[root].append({"type": "message", **told})
        await self._event(**told)

    async def redeliver(self, sent: Sent) -> None:
        await self._send({**sent.raw, "retry_attempt": 1, "retry_reason": "timeout"})

    def acknowledged(self, sent: Sent) -> bool:
        return sent.raw["envelope_id"] in self.fake.acked

    def _message(self, sent: Sent) -> dict[str, Any]:
        event = sent.raw["payload"]["event"]
        return {name: event[name] for name in ("type", "user", "text", "ts")}

    async def edit(self, sent: Sent, text: str) -> None:
        before = self._message(sent)
        after = {**before, "text": text, "edited": {"user": before["user"], "ts": "1700000009.000000"}}
        await self._event(
            subtype="message_changed", ts="1700000009.000001", message=after, previous_message=before
        )

    async def delete(self, sent: Sent) -> None:
        before = self._message(sent)
        await self._event(
            subtype="message_deleted", ts="1700000009.000002", deleted_ts=sent.id, previous_message=before
        )

    async def press(self, card: Shown, label: str, person: str = ANN) -> None:
        self.number += 1
        payload = fake_slack.pressed(dict(card.buttons)[label], trigger_id=f"99.88.{self.number}")
        payload["user"] = {"id": self.people[person], "username": person}
        payload["channel"] = {"id": self.chat, "name": "directmessage"}
        payload["container"] |= {"message_ts": card.id, "channel_id": self.chat}
        payload["message"]["ts"] = card.id
        await self._send(fake_slack.envelope(f"e{self.number}", payload, "interactive"))

    def shown(self) -> Sequence[Shown]:
        return [self._shown(ts, body) for ts, body in self.fake.posted.items()]

    def _shown(self, ts: str, body: dict[str, Any]) -> Shown:
        blocks = body.get("blocks") or []
        elements = [one for block in blocks for one in block.get("elements", ())]
        buttons = [(one["text"]["text"], one["value"]) for one in elements if one.get("type") == "button"]
        sections = [block["text"]["text"] for block in blocks if block.get("type") == "section"]
        text = "".join(sections) or body.get("text", "")
        return Shown(ts, text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"), tuple(buttons))

    async def files(self) -> Sequence[tuple[str, bytes]]:
        names = [call.body["files"][0]["title"] for call in self.fake.called("files.completeUploadExternal")]
        contents = [call.raw for call in self.fake.calls if call.method.startswith("/upload/")]
        return list(zip(names, contents, strict=False))

    async def malformed(self) -> None:
        await self._event(ts="sevenfold", user=self.people[ANN], text="hello")

    def looks(self) -> int:
        return len(self.fake.called("apps.connections.open"))

    def tries(self) -> int:
        return len(self.fake.called("chat.postMessage"))

    def limit(self) -> None:
        refusal = {"ok": False, "error": "ratelimited"}
        self.fake.will("chat.postMessage", fake_slack.Fault(429, refusal, {"Retry-After": str(self.wait_s)}))

    def refuse(self) -> None:
        self.fake.will("chat.postMessage", fake_slack.Fault(body={"ok": False, "error": "channel_not_found"}))

    def lose_answer(self) -> None:
        self.fake.will("chat.postMessage", fake_slack.Fault(lost=True))

    def forget(self, shown: Shown) -> None:
        del self.fake.posted[shown.id]

    async def go_away(self) -> None:
        self.fake.away = True
        for wire in self.fake.live:
            wire.cut()

    async def come_back(self) -> None:
        self.fake.away = False


class DiscordDriver(Driver):
    platform, kind = Platform.DISCORD, DiscordAdapter
    libraries: ClassVar = {"discord": "discord_library"}
    people: ClassVar = {ANN: fake_discord.ALICE, BEN: fake_discord.BOB, EVE: fake_discord.CAROL}
    lacks: ClassVar = {
        "acknowledgements": "Discord has no acknowledgements, so the adapter keeps each message until postroom has stored it",
        "forwarded authors": "Discord does not say who wrote a forwarded message",
        "unknown parts": "each part of a message is a file, an embed, a poll or a component, and the agent reads each of these",
    }
    secrets = (fake_discord.TOKEN, "aT0ken-")
    chat = fake_discord.DIRECT

    async def begin(self) -> None:
        self.fake = await self.stack.enter_async_context(fake_discord.FakeDiscord.serving())
        for person in (BEN, EVE):
            direct = self._direct(person)
            self.fake.channels[direct] = {"id": direct, "type": 1, "recipients": []}

    def _direct(self, person: str) -> str:
        return {ANN: fake_discord.DIRECT, BEN: "3004", EVE: "3005"}[person]

    def config(self, *, secret: str | None = None) -> PlatformConfig:
        return table_of(
            DiscordOptions,
            token=secret or fake_discord.TOKEN,
            allow=self.allow,
            base_url=self.fake.url,
            cdn_url=self.fake.cdn,
        )

    async def say(self, text: str, person: str = ANN, extra: Extra = PLAIN) -> Sent:
        more: dict[str, Any] = {"channel": self._direct(person)}
        if extra.group:
            more["channel"] = fake_discord.ROOM
        if extra.group and extra.mention:
            text = f"<@{fake_discord.ME}> {text}"
            more["mentions"] = [fake_discord.PERSONS[fake_discord.ME]]
        if extra.forward:
            more["message_snapshots"] = [{"message": {"content": extra.forward[1]}}]
        if extra.reply:
            author, words = extra.reply
            more["message_reference"] = {"message_id": "1", "channel_id": more["channel"]}
            more["referenced_message"] = {"author": {"id": "2009", "username": author}, "content": words}
        if extra.file:
            name, content = extra.file
            self.fake.files[f"/attachments/{name}"] = content
            where = {"id": "1", "filename": name, "url": f"{self.fake.cdn}/attachments/{name}"}
            holder = more["message_snapshots"][0]["message"] if extra.forward else more
            holder["attachments"] = [{**where, "size": len(content), "content_type": "text/plain"}]
        said = "" if extra.forward else text
        made = await self.fake.say(said, author=self.people[person], **more)
        return Sent(text, person, made["id"], made)

    async def redeliver(self, sent: Sent) -> None:
        await self.fake.tell("MESSAGE_CREATE", sent.raw)

    async def edit(self, sent: Sent, text: str) -> None:
        told = {**sent.raw, "content": text, "edited_timestamp": "2026-11-21T18:01:00Z"}
        await self.fake.tell("MESSAGE_UPDATE", told)

    async def delete(self, sent: Sent) -> None:
        told = {"id": sent.id, "channel_id": sent.raw["channel_id"]}
        await self.fake.tell("MESSAGE_DELETE", told)

    async def press(self, card: Shown, label: str, person: str = ANN) -> None:
        await self.fake.press(dict(card.buttons)[label], card.id, author=self.people[person])

    def shown(self) -> Sequence[Shown]:
        return [self._shown(message_id, body) for message_id, body in self.fake.shown.items()]

    def _shown(self, message_id: str, body: dict[str, Any]) -> Shown:
        rows = body.get("components") or []
        buttons = [(one["label"], one["custom_id"]) for row in rows for one in row["components"]]
        return Shown(message_id, body["content"], tuple(buttons))

    async def files(self) -> Sequence[tuple[str, bytes]]:
        return [(one.file[0], one.file[2]) for one in self.fake.seen if one.file is not None]

    async def malformed(self) -> None:
        await self.fake.tell("MESSAGE_CREATE", {"id": "sevenfold", "channel_id": self.chat})

    def _path(self) -> str:
        return f"/channels/{self.chat}/messages"

    def looks(self) -> int:
        return len(self.fake.identified) + len(self.fake.resumed)

    def tries(self) -> int:
        return len(self.fake.calls("POST", self._path()))

    def limit(self) -> None:
        body = {"retry_after": float(self.wait_s), "global": False}
        self.fake.play("POST", self._path(), status=429, body=body)

    def refuse(self) -> None:
        body = {"message": "Cannot send messages to this user", "code": 50007}
        self.fake.play("POST", self._path(), status=403, body=body)

    def lose_answer(self) -> None:
        self.fake.play("POST", self._path(), lose=True)

    def forget(self, shown: Shown) -> None:
        del self.fake.shown[shown.id]
        self.fake.gone.add(shown.id)

    async def go_away(self) -> None:
        self.fake.away = True
        self.fake.cut()

    async def come_back(self) -> None:
        self.fake.away = False


class MatrixDriver(Driver):
    platform, kind = Platform.MATRIX, MatrixAdapter
    libraries: ClassVar = {"httpx2": "matrix"}
    people: ClassVar = {ANN: "@ann:fake", BEN: "@ben:fake", EVE: "@eve:fake"}
    lacks: ClassVar = {
        "forwards": "Matrix does not mark forwarded words, so they look like the sender's own words",
        "buttons": "Matrix has no buttons, so the text says how to answer",
        "unknown parts": "a message of an unknown kind has a text for older clients, and the agent reads that text",
        "failing edits": "an edit is a separate event, which the homeserver accepts for any message",
    }
    secrets = (TOKEN,)
    chat, group = "!direct:fake", "!group:fake"

    async def begin(self) -> None:
        self.fake = await self.stack.enter_async_context(FakeMatrix())
        rooms = {self.group: 5, **{self._direct(person): 2 for person in self.people}}
        joined = {room: {"summary": {"m.joined_member_count": count}} for room, count in rooms.items()}
        self.fake.first = {"rooms": {"join": joined}}

    def _direct(self, person: str) -> str:
        return {ANN: self.chat}.get(person, f"!{person}:fake")

    def config(self, *, secret: str | None = None) -> PlatformConfig:
        extra = {"base_url": self.fake.url, "sync_file": str(self.folder / "matrix.json")}
        return MatrixOptions(token=secret or TOKEN, allow=self.allow, **extra)

    def _event(self, person: str, kind: str = "m.room.message", **content: Any) -> dict[str, Any]:
        self.number += 1
        event = {"type": kind, "event_id": f"$event{self.number}", "sender": self.people[person]}
        return {**event, "origin_server_ts": 1_700_000_000_000 + self.number, "content": content}

    async def say(self, text: str, person: str = ANN, extra: Extra = PLAIN) -> Sent:
        content: dict[str, Any] = {"msgtype": "m.text", "body": text}
        if extra.group and extra.mention:
            content |= {"body": f"@bot:fake: {text}", "m.mentions": {"user_ids": [BOT]}}
        if extra.reply:
            author, words = extra.reply
            sender = {"sender": f"@{author.lower()}:fake"}
            old = self._event(person, msgtype="m.text", body=words) | sender
            self.fake.events[old["event_id"]] = old
            content["m.relates_to"] = {"m.in_reply_to": {"event_id": old["event_id"]}}
        if extra.file:
            name, data = extra.file
            self.fake.files[name.partition(".")[0]] = data
            content = {"msgtype": "m.file", "body": text, "filename": name}
            content |= {"url": f"mxc://fake/{name.partition('.')[0]}", "info": {"mimetype": "text/plain"}}
        event = self._event(person, **content)
        room = self.group if extra.group else self._direct(person)
        await self.fake.push(room, event)
        return Sent(text, person, event["event_id"], (room, event), len(self.fake.batches))

    async def redeliver(self, sent: Sent) -> None:
        room, event = sent.raw
        await self.fake.push(room, event)

    def acknowledged(self, sent: Sent) -> bool:
        asked = [one.query.get("since") for one in self.fake.requests("/sync")]
        return any(since and int(since[1:]) >= sent.number for since in asked)

    async def edit(self, sent: Sent, text: str) -> None:
        room, _ = sent.raw
        new = {"msgtype": "m.text", "body": text}
        relation = {"rel_type": "m.replace", "event_id": sent.id}
        content = {"msgtype": "m.text", "body": f"* {text}", "m.new_content": new, "m.relates_to": relation}
        await self.fake.push(room, self._event(sent.person, **content))

    async def delete(self, sent: Sent) -> None:
        room, _ = sent.raw
        await self.fake.push(room, self._event(sent.person, "m.room.redaction", redacts=sent.id))

    def shown(self) -> Sequence[Shown]:
        found: dict[str, str] = {}
        for number, content in enumerate(self.fake.said):
            relation = content.get("m.relates_to", {})
            if relation.get("rel_type") == "m.replace":
                found[relation["event_id"]] = content["m.new_content"]["body"]
            elif "msgtype" in content:
                found[f"$sent{number}"] = content["body"]
        return [Shown(key, text) for key, text in found.items() if key not in self.fake.redacted]

    async def files(self) -> Sequence[tuple[str, bytes]]:
        names = [
            one.get("filename") or one["body"]
            for one in self.fake.said
            if one.get("msgtype") in ("m.file", "m.image", "m.audio")
        ]
        return list(zip(names, [one.body for one in self.fake.requests("/upload")], strict=False))

    async def malformed(self) -> None:
        await self.fake.push(
            self.chat, {"type": "m.room.message", "event_id": 7, "content": {"body": "sevenfold"}}
        )

    def looks(self) -> int:
        return len(self.fake.requests("/sync"))

    def tries(self) -> int:
        return len(self.fake.requests("/send/m.room.message"))

    def limit(self) -> None:
        body = {"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": self.wait_s * 1_000}
        self.fake.faults.append(Fault("/send/m.room.message", 429, body))

    def refuse(self) -> None:
        self.fake.faults.append(Fault("/send/m.room.message", 403, {"errcode": "M_FORBIDDEN"}))

    def lose_answer(self) -> None:
        self.fake.faults.append(Fault("/send/m.room.message", after=True))

    async def go_away(self) -> None:
        self.fake.faults.append(Fault("/", times=1_000_000))
        await self.fake.push("!nowhere:fake")  # ends the request that waits

    async def come_back(self) -> None:
        self.fake.faults.clear()


class EmailDriver(Driver):
    platform, kind = Platform.EMAIL, EmailAdapter
    people: ClassVar = {ANN: "ann@example.com", BEN: "ben@example.com", EVE: "eve@example.com"}
    lacks: ClassVar = {
        "edits": "nobody can change an e-mail after it was sent",
        "deletes": "nobody can take an e-mail back after it was sent",
        "drafts": "postroom sends one mail when the answer is complete",
        "buttons": "an e-mail has no buttons, so the text says how to answer",
        "failing edits": "an e-mail is never edited",
        "replies": "the history that an e-mail quotes is cut off, because the conversation contains it",
        "unknown parts": "each part of an e-mail is text or a file",
        "groups": "each e-mail belongs to the conversation of its only sender",
    }
    secrets = (PASSWORD,)
    wait_s = 60  # SMTP names no time: after these words the adapter waits a minute
    unstorable = ""
    chat = "ann@example.com"

    async def begin(self) -> None:
        self.fake = self.stack.enter_context(FakeMail())
        self._roots: dict[str, str] = {}

    def config(self, *, secret: str | None = None) -> PlatformConfig:
        extra: dict[str, Any] = {"address": ADDRESS, "imap_host": "127.0.0.1"}
        extra |= {"imap_port": self.fake.imap.port}
        extra |= {"smtp_host": "127.0.0.1", "smtp_port": self.fake.smtp.port, "timeout_ms": 5_000}
        extra |= {"imap_security": "plain", "smtp_security": "plain", "poll_ms": 100}
        extra |= {"authserv_id": "mx.example.org"}
        return table_of(EmailOptions, token=secret or PASSWORD, allow=self.allow, **extra)

    def adapter(self, clock: ManualClock, *, secret: str | None = None) -> BasePlatformAdapter:
        self.fake.imap.refusals = {"LOGIN": "[AUTHENTICATIONFAILED] Invalid credentials"} if secret else {}
        return super().adapter(clock, secret=secret)

    async def say(self, text: str, person: str = ANN, extra: Extra = PLAIN) -> Sent:
        self.number += 1
        message_id = f"<{self.number}@example.com>"
        root = self._roots.setdefault(person, message_id)
        headers = {"Message_ID": message_id, "Subject": ""}
        headers["Authentication_Results"] = "mx.example.org; dmarc=pass header.from=example.com"
        if root != message_id:
            headers |= {"In_Reply_To": root, "References": root}
        if extra.forward:
            author, words = extra.forward
            text = f"{text}\n\n---------- Forwarded message ---------\nFrom: {author} <x@x.org>\n\n{words}\n"
        sender = f"{person.title()} <{self.people[person]}>"
        made: EmailMessage = mail(text, sender=sender, **headers)
        if extra.file:
            name, content = extra.file
            made.add_attachment(content, maintype="text", subtype="csv", filename=name)
        return Sent(text, person, message_id, None, self.fake.imap.put(made))

    async def redeliver(self, sent: Sent) -> None:
        self.fake.imap.mails[sent.number].seen = False

    def acknowledged(self, sent: Sent) -> bool:
        return self.fake.imap.mails[sent.number].seen

    def shown(self) -> Sequence[Shown]:
        return [Shown(one["Message-ID"], _plain(one)) for one in list(self.fake.smtp.got)]

    async def files(self) -> Sequence[tuple[str, bytes]]:
        parts = [part for one in self.fake.smtp.got for part in one.walk() if part.get_filename()]
        return [(str(part.get_filename()), part.get_payload(decode=True)) for part in parts]  # type: ignore[misc]

    async def malformed(self) -> None:
        self.fake.imap.put(b"From: ann@example.com\r\nFrom: eve@example.com\r\n\r\nsevenfold\r\n")

    def looks(self) -> int:
        return len(self.fake.imap.asked("UID SEARCH"))

    def tries(self) -> int:
        return len(self.fake.smtp.got) + self.fake.smtp.refused

    def limit(self) -> None:
        self.fake.smtp.refusals = {"RCPT": "451 4.7.1 slow down"}

    def refuse(self) -> None:
        self.fake.smtp.refusals = {"RCPT": "550 5.1.1 no such user"}

    def lift(self) -> None:
        self.fake.smtp.refusals = {}

    def lose_answer(self) -> None:
        self.fake.smtp.loses_answers = 1

    async def go_away(self) -> None:
        self.fake.imap.away = self.fake.smtp.away = True

    async def come_back(self) -> None:
        self.fake.imap.away = self.fake.smtp.away = False


def _plain(message: Message) -> str:
    for part in message.walk():
        if part.get_content_type() == "text/plain" and not part.get_filename():
            payload = part.get_payload(decode=True)
            assert isinstance(payload, bytes)
            return payload.decode().replace("\r\n", "\n").rstrip("\n")
    return ""


class WebDriver(Driver):
    platform, kind = Platform.WEB, WebAdapter
    people: ClassVar = {ANN: "web:ann", BEN: "web:ben", EVE: "web:eve"}
    lacks: ClassVar = {
        "forwards": "the page cannot forward a message",
        "replies": "the page cannot quote a message",
        "unknown parts": "the page sends text and files only",
        "groups": "each person has a separate chat",
        "strangers": "only people who signed in can write",
        "outages": "postroom itself serves the page",
        "limits": "the page sets no rate limit for answers",
        "refusals": "the page refuses no answer",
        "lost answers": "the page reads the log of the server itself",
        "parts": "the page shows a text of any length",
        "failing edits": "the server itself stores the text that the page shows",
        "credentials": "the adapter logs in to no other server",
        "drafts of a process that died": "the page shows a draft only while the process that writes the answer runs",
        "other people's cards": "each person sees only their own chat",
        "dead letters": "the page gets an error at once, and the person still has the text",
        "shared bots": "each server answers its own pages",
    }
    secrets = ("the token of ann", "the token of ben")
    unstorable = "\x00"
    chat = ANN

    async def begin(self) -> None:
        self._adapter: Any = None
        self._pages: dict[str, httpx2.AsyncClient] = {}
        self._held: list[Sent] = []
        self._taken: set[str] = set()

    def config(self, *, secret: str | None = None) -> PlatformConfig:
        people = {BEN: {"token": "the token of ben, long enough"}}
        return table_of(WebOptions, token="the token of ann, long enough", name=ANN, people=people)

    async def opened(self, adapter: BasePlatformAdapter) -> None:
        self._adapter = adapter
        for person in (ANN, BEN):
            page = self._pages[person] = await self.stack.enter_async_context(calling(self._adapter))
            form = {"token": f"the token of {person}, long enough"}
            headers = {"Sec-Fetch-Site": "same-origin"}
            assert (await page.post("/chat/sign-in", data=form, headers=headers)).status_code == 303
        await self.send_again()

    async def _asked(self, method: str, path: str, person: str, body: Any) -> httpx2.Response:
        headers = {"X-Postroom": "1", "Origin": "http://room.test", "Sec-Fetch-Site": "same-origin"}
        if not isinstance(body, bytes):
            headers["Content-Type"] = "application/json"
            body = json.dumps(body).encode()
        try:
            return await self._pages[person].request(method, path, content=body, headers=headers)
        except TypeError:  # a test has the server meet a defect: its own door answers with 500
            return httpx2.Response(500)

    async def _changed(self, method: str, path: str, person: str, body: Any) -> None:
        """Send a change until it is stored."""
        while (answer := await self._asked(method, path, person, body)).status_code == 503:
            pass
        assert answer.status_code == 200, answer.text

    async def say(self, text: str, person: str = ANN, extra: Extra = PLAIN) -> Sent:
        self.number += 1
        body: dict[str, Any] = {"id": f"message-{self.number:04d}", "text": text, "files": []}
        if extra.file:
            name, content = extra.file
            stored = await self._asked("POST", f"/chat/files?name={name}", person, content)
            body["files"] = [stored.json()["id"]]
        sent = Sent(text, person, body["id"], body)
        self._held.append(sent)
        await self.send_again()
        return sent

    async def send_again(self) -> None:
        while self._held and self._adapter is not None:
            sent = self._held[0]
            answer = await self._asked("POST", "/chat/messages", sent.person, sent.raw)
            if answer.status_code >= 500:
                if answer.status_code == 500:
                    self._held.pop(0)
                return
            self._held.pop(0)
            self._taken.add(sent.id)

    async def redeliver(self, sent: Sent) -> None:
        assert (await self._asked("POST", "/chat/messages", sent.person, sent.raw)).status_code == 202

    def acknowledged(self, sent: Sent) -> bool:
        return sent.id in self._taken

    async def edit(self, sent: Sent, text: str) -> None:
        await self._changed("PUT", f"/chat/messages/{sent.id}", sent.person, {"text": text})

    async def delete(self, sent: Sent) -> None:
        await self._changed("DELETE", f"/chat/messages/{sent.id}", sent.person, b"")

    async def press(self, card: Shown, label: str, person: str = ANN) -> None:
        self.number += 1
        body = {"value": dict(card.buttons)[label], "message_id": card.id}
        body["press_id"] = f"press-{self.number:04d}"
        await self._changed("POST", "/chat/buttons", person, body)

    def shown(self) -> Sequence[Shown]:
        entries = [one for log in self._adapter._logs.values() for one in log._entries.values()]
        said = [one for one in entries if one.kind in ("answer", "card") and not one.gone]
        # The page shows an answer in the place of its draft.
        return [Shown(one.replaces or one.entry_id, one.text, one.buttons) for one in said]

    async def files(self) -> Sequence[tuple[str, bytes]]:
        entries = [one for log in self._adapter._logs.values() for one in log._entries.values()]
        files = [file for one in entries if one.kind == "answer" for file in one.files]
        page = self._pages[ANN]
        return [(file.name, (await page.get(f"/chat/files/{file.sha256}")).content) for file in files]

    async def conversation(self) -> list[dict[str, Any]]:
        """Return the entries that the page reads from the server."""
        answer = await self._pages[ANN].get("/chat/conversations/main")
        return list(answer.json()["entries"])

    async def malformed(self) -> None:
        answer = await self._asked("POST", "/chat/messages", ANN, {"id": 7, "text": []})
        assert answer.status_code == 400


DRIVERS: tuple[type[Driver], ...] = (
    TelegramDriver,
    SlackDriver,
    DiscordDriver,
    MatrixDriver,
    EmailDriver,
    WebDriver,
)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "content.md"
BEGIN, END = "<!-- lacks -->\n", "<!-- end of lacks -->\n"


def table() -> str:
    """Return the table of the page: the abilities that a platform lacks, with the reasons."""
    lines = ["| platform | lacks | reason |", "|---|---|---|"]
    lines += [
        f"| {driver.platform.value} | {ability} | {reason} |"
        for driver in DRIVERS
        for ability, reason in driver.lacks.items()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    head, tail = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(f"{head}{BEGIN}\n{table()}\n{END}{tail}", encoding="utf-8")
