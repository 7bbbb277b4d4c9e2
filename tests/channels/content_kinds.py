"""The handling of each kind of content on each platform, tested with a sample from the platform.

`given`: the agent reads it. `named`: the agent and the sender learn that it is not read. `refused`: it is for
nobody, and no agent is called. Run as a program it writes the table of docs/content.md.
"""

from email.message import EmailMessage
from pathlib import Path
from typing import Any

from channels.fake_discord import ALICE, BOB, DIRECT, ME, PERSONS
from channels.fake_telegram import BOT_ID, USERNAME
from postroom.contracts.chat import InboundKey, InboundMessage, InboundStatus
from postroom.gateway.events import MessageEvent
from postroom.gateway.handover import build_message
from postroom.gateway.platforms import discord as discord_file
from postroom.gateway.platforms import email as email_file
from postroom.gateway.platforms import matrix as matrix_file
from postroom.gateway.platforms import slack as slack_file
from postroom.gateway.platforms.telegram import Me, read_update

PAGE = Path(__file__).resolve().parents[2] / "docs" / "content.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
WORD = "marker"
"""Stands in each sample; where the agent reads it, the content was given."""
PERSON = {"id": 1, "is_bot": False, "first_name": "Ann"}
OTHER = {"id": 2, "is_bot": False, "first_name": "Bob"}
FILE = {"file_id": WORD, "file_name": WORD, "mime_type": "text/plain", "file_size": 9}
PHOTO = [{"file_id": WORD, "width": 9, "height": 9}]
PLACE = {"latitude": 52.5, "longitude": 13.0}
ATTACHED = {"id": "1", "filename": WORD, "url": f"https://cdn.discordapp.com/{WORD}", "size": 9}
SLACK_FILE = {"mode": "hosted", "url_private": f"https://files.slack.com/{WORD}", "name": WORD}
FORWARDED = (
    f"Please look.\n\n---------- Forwarded message ---------\nFrom: Bob <b@x.org>\nDate: Mon\n\n{WORD}\n"
)


def telegram(**told: Any) -> MessageEvent | None:
    message = {"message_id": 1, "date": 1, "chat": {"id": 1, "type": "private"}, "from": PERSON, **told}
    found = read_update({"update_id": 1, "message": message}, Me(bot_id=BOT_ID, username=USERNAME))
    assert found is None or isinstance(found, MessageEvent)
    return found


def replied(**told: Any) -> dict[str, Any]:
    return {"message_id": 2, "date": 1, "chat": {"id": 1, "type": "private"}, "from": OTHER, **told}


def slack(**told: Any) -> MessageEvent | None:
    event = {"type": "message", "user": "U1", "text": "", "ts": "1.1", "channel": "D1", **told}
    bot = slack_file.Bot(team_id="T1", user_id="UBOT")
    found = slack_file.read("events_api", {"event": {"channel_type": "im", **event}}, bot, slack_file.Rules())
    return found.event if isinstance(found, slack_file.NewMessage) else None


def discord(**told: Any) -> MessageEvent | None:
    message = {
        "id": "1100000000004194304",
        "channel_id": DIRECT,
        "author": PERSONS[ALICE],
        "content": "",
        **told,
    }
    me, read = discord_file.Me(user_id=ME), discord_file.read(message, discord_file.Message)
    if not read.is_for(me):
        return None
    return discord_file.build_event(read, discord_file.Channel(chat_type="dm"), me)


def matrix(kind: str = "m.room.message", **content: Any) -> MessageEvent | None:
    room = matrix_file.Room(room_id="!r:fake")
    room.joined = 2
    event = {
        "type": kind,
        "event_id": "$1",
        "sender": "@ann:fake",
        "content": {"msgtype": "m.text", "body": "", **content},
    }
    found = matrix_file.understood(event, room, matrix_file.Ourselves(user_id="@bot:fake"))
    return None if found is None else found.event


def email(text: str = "", html: str = "", file: str = "", **headers: str) -> MessageEvent | None:
    mail = EmailMessage()
    mail["From"], mail["Message-ID"] = "Ann <ann@example.org>", "<1@example.org>"
    for name, value in headers.items():
        mail[name.replace("_", "-")] = value
    mail.set_content(html or text, subtype="html" if html else "plain")
    if file:
        mail.add_attachment(b"x", maintype="text", subtype="csv", filename=file)
    where = email_file.Where(validity=1, uid=1)
    me = email_file.Ourselves(address="bot@example.org", authserv_id=None)
    return email_file.understood(email_file.parse_email(mail.as_bytes()), where, me)


def share(**told: Any) -> list[dict[str, Any]]:
    return [{"is_share": True, "is_msg_unfurl": True, "author_name": "Bob", **told}]


KINDS: dict[str, dict[str, MessageEvent | None]] = {}


def sample(kind: str, **events: MessageEvent | None) -> None:
    KINDS[kind] = events


sample(
    "words",
    telegram=telegram(text=WORD),
    slack=slack(text=WORD),
    discord=discord(content=WORD),
    matrix=matrix(body=WORD),
    email=email(WORD),
)
sample(
    "a word with a link",
    telegram=telegram(
        text="here", entities=[{"type": "text_link", "offset": 0, "length": 4, "url": f"https://{WORD}/"}]
    ),
    slack=slack(text=f"<https://{WORD}/|here>"),
    discord=discord(content=f"[here](https://{WORD}/)"),
    matrix=matrix(body="here", formatted_body=f'<a href="https://{WORD}/">here</a>'),
    email=email(html=f'<a href="https://{WORD}/">here</a>'),
)
sample(
    "a photo",
    telegram=telegram(photo=PHOTO),
    slack=slack(files=[{**SLACK_FILE, "mimetype": "image/png"}]),
    discord=discord(attachments=[{**ATTACHED, "content_type": "image/png"}]),
    matrix=matrix(msgtype="m.image", body=WORD, url=f"mxc://fake/{WORD}"),
    email=email("see", file=f"{WORD}.png"),
)
sample(
    "a file",
    telegram=telegram(document=FILE),
    slack=slack(files=[SLACK_FILE]),
    discord=discord(attachments=[ATTACHED]),
    matrix=matrix(msgtype="m.file", body=WORD, url=f"mxc://fake/{WORD}"),
    email=email("see", file=WORD),
)
sample(
    "a voice message",
    telegram=telegram(voice=FILE),
    slack=slack(files=[{**SLACK_FILE, "subtype": "slack_audio"}]),
    discord=discord(attachments=[ATTACHED], flags=1 << 13),
    matrix=matrix(msgtype="m.audio", body=WORD, url=f"mxc://fake/{WORD}", **{"m.voice": {}}),
)
sample(
    "a video",
    telegram=telegram(video=FILE),
    slack=slack(files=[{**SLACK_FILE, "mimetype": "video/mp4"}]),
    discord=discord(attachments=[{**ATTACHED, "content_type": "video/mp4"}]),
    matrix=matrix(msgtype="m.video", body=WORD, url=f"mxc://fake/{WORD}"),
)
sample(
    "a sticker",
    telegram=telegram(sticker={**FILE, "emoji": "x"}),
    discord=discord(sticker_items=[{"name": WORD, "id": "5"}]),
    matrix=matrix("m.sticker", body=WORD, url=f"mxc://fake/{WORD}"),
)
sample(
    "a reply to words",
    telegram=telegram(text="why?", reply_to_message=replied(text=WORD)),
    discord=discord(
        content="why?",
        message_reference={"message_id": "1"},
        referenced_message={"author": PERSONS[BOB], "content": WORD},
    ),
)
sample(
    "a reply to a file",
    telegram=telegram(text="why?", reply_to_message=replied(document=FILE)),
    discord=discord(
        content="why?",
        message_reference={"message_id": "1"},
        referenced_message={"author": PERSONS[BOB], "content": "", "attachments": [ATTACHED]},
    ),
)
sample(
    "a reply to a message of another chat",
    telegram=telegram(
        text="why?",
        external_reply={"origin": {"type": "user", "sender_user": OTHER, "date": 1}, "document": FILE},
    ),
)
sample(
    "a forward of words",
    telegram=telegram(text=WORD, forward_origin={"type": "user", "sender_user": OTHER, "date": 1}),
    slack=slack(attachments=share(text=WORD)),
    discord=discord(message_snapshots=[{"message": {"content": WORD}}]),
    matrix=matrix(body=WORD),
    email=email(FORWARDED),
)
sample(
    "a forward of a file",
    telegram=telegram(
        document=FILE, forward_origin={"type": "hidden_user", "sender_user_name": "Bob", "date": 1}
    ),
    slack=slack(attachments=share(files=[SLACK_FILE])),
    discord=discord(message_snapshots=[{"message": {"content": "", "attachments": [ATTACHED]}}]),
    matrix=matrix(msgtype="m.file", body=WORD, url=f"mxc://fake/{WORD}"),
    email=email(FORWARDED.replace(WORD, "see"), file=WORD),
)
sample(
    "a program's blocks or embeds",
    slack=slack(bot_id="B2", blocks=[{"type": "section", "text": {"type": "mrkdwn", "text": WORD}}]),
    discord=discord(author={**PERSONS[BOB], "bot": True}, embeds=[{"title": WORD}]),
)
sample(
    "a program's attachments",
    slack=slack(bot_id="B2", attachments=[{"fallback": "x", "fields": [{"title": "CPU", "value": WORD}]}]),
    discord=discord(
        author={**PERSONS[BOB], "bot": True}, embeds=[{"fields": [{"name": "CPU", "value": WORD}]}]
    ),
)
sample(
    "the preview of a link",
    slack=slack(text="see", attachments=[{"from_url": "https://x.org", "title": WORD}]),
    discord=discord(content="see", embeds=[{"title": WORD}]),
)
sample(
    "a poll",
    telegram=telegram(poll={"question": WORD, "options": [{"text": "yes"}]}),
    discord=discord(poll={"question": {"text": WORD}, "answers": [{"poll_media": {"text": "yes"}}]}),
    matrix=matrix(
        "org.matrix.msc3381.poll.start",
        **{"org.matrix.msc3381.poll.start": {"question": {"org.matrix.msc1767.text": WORD}, "answers": []}},
    ),
)
sample(
    "a contact",
    telegram=telegram(contact={"first_name": WORD, "phone_number": "1"}),
    email=email("see", file=f"{WORD}.vcf"),
)
sample(
    "a place",
    telegram=telegram(venue={"location": PLACE, "title": WORD, "address": "Road 1"}),
    matrix=matrix(msgtype="m.location", body=WORD, geo_uri="geo:1,2"),
)
sample("a dice", telegram=telegram(dice={"emoji": WORD, "value": 4}))
sample("a checklist", telegram=telegram(checklist={"title": WORD, "tasks": [{"text": "milk"}]}))
sample("a game or an invoice", telegram=telegram(game={"title": WORD, "description": "x"}))
sample("a story, a gift, paid media", telegram=telegram(story={"id": 1}))
sample(
    "content of an unknown kind",
    telegram=telegram(hologram={"id": 1}),
    slack=slack(blocks=[{"type": "hologram"}]),
)
sample(
    "a file that the platform withholds",
    slack=slack(files=[{"mode": "hidden_by_limit"}]),
    matrix=matrix(msgtype="m.file", body=WORD, file={"url": "mxc://fake/x"}),
)
sample("an e-mail from a program or a mailing list", email=email(WORD, Auto_Submitted="auto-replied"))
sample(
    "an event of the chat, such as somebody who joined",
    telegram=telegram(new_chat_members=[OTHER]),
    slack=slack(subtype="channel_join", text=WORD),
    discord=discord(type=7),
    matrix=matrix("m.room.member"),
)
sample(
    "a message without any content",
    telegram=telegram(text=""),
    slack=slack(),
    discord=discord(),
    matrix=matrix(),
    email=email(),
)


def outcome(event: MessageEvent | None) -> str:
    """Return how a message is handled."""
    if event is None or "automatic" in event.metadata:
        return "refused"
    key = InboundKey(platform="x", account="x", chat_id="x", message_id="x")
    inbound = InboundMessage(
        inbound_id=1,
        key=key,
        session_key="x",
        sender_id=None,
        body={},
        status=InboundStatus.WAITING,
        received_at=0,
        updated_at=0,
    )
    message = build_message(event, inbound, shared=False)
    files = " ".join(f"{block.data.get('ref')} {block.data.get('name')}" for block in message.content[1:])
    if WORD in f"{message.text()} {files}":
        return "given"
    return "named" if event.unread else "refused"


def table() -> str:
    """Return the table of the page."""
    platforms = ("telegram", "slack", "discord", "matrix", "email")
    lines = ["| content | Telegram | Slack | Discord | Matrix | e-mail |", "|---|---|---|---|---|---|"]
    for kind, events in KINDS.items():
        cells = [outcome(events[name]) if name in events else "" for name in platforms]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    head, tail = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(f"{head}{BEGIN}\n{table()}\n{END}{tail}", encoding="utf-8")
