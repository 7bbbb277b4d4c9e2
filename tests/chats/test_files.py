"""Files of chats: fetched when the message is durable, checked, stored once, handed out and sent back."""

import hashlib

import pytest

from dispatch_room import done
from gateway_room import CONFIG, Agent, all_answered, settled, tried
from postroom.contracts.chat import InboundStatus
from postroom.contracts.errors import (
    InvalidArgument,
    ProviderFailed,
    ServerUnavailable,
    StoreUnavailable,
    TooLarge,
)
from postroom.contracts.records import replace
from postroom.gateway import wording
from postroom.gateway.events import MessageType
from postroom.gateway.platforms.base import AdapterState

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 64


class Reader(Agent):
    """An agent that reads the files of its messages."""

    def __init__(self) -> None:
        super().__init__()
        self.act = self._read
        self.seen: list[tuple[str, ...]] = []
        self.got: list[list[object]] = []

    async def _read(self, activation, sink):
        files = activation.control.files
        found = [file for message in activation.messages for file in await files.of(message)]
        self.got.append(found)
        whole = [
            b"".join([piece async for piece in files.content(file)]) for file in found if file.missing is None
        ]
        self.seen.append(tuple(hashlib.sha256(one).hexdigest() for one in whole))
        return done(activation, "read")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def test_a_file_is_fetched_once_and_the_same_bytes_are_stored_once(room) -> None:
    agent = Reader()
    gateway, channel = await room.open(agent)
    channel.kept_files |= {"a.png": PNG, "b.png": PNG}
    await channel.say("", files=["a.png", "b.png"])  # a turn without words
    await all_answered(room, gateway, 1)
    channel.kept_files.clear()
    [[first, second]] = agent.got
    assert (first.name, first.media_type, first.size) == ("a.png", "image/png", 72)
    assert (agent.seen, channel.texts()) == ([(_hash(PNG),) * 2], ["read"])
    assert first.sha256 == second.sha256 == _hash(PNG)
    known = await room.stores.files.files(first.thread_id, [first.message_id])
    assert known == (first, second)


async def test_a_file_over_the_limit_keeps_its_caption_and_its_sender_is_told(room) -> None:
    agent = Reader()
    gateway, channel = await room.open(agent, config=replace(CONFIG, max_media_bytes=50))
    channel.kept_files["a.png"] = PNG
    event = channel.message("the caption", files=["a.png"])
    event.media = (replace(event.media[0], size=51),)
    await channel.handle_message(event)
    unsaid = channel.message("no size said", files=["a.png"])
    await channel.handle_message(unsaid)
    await all_answered(room, gateway, 2)
    assert agent.read == [["the caption"], ["no size said"]]
    assert [file.missing for [file] in agent.got] == [
        "the file has 51 bytes; the limit is 50",
        "the file has 72 bytes; the limit is 50",
    ]
    told = "I could not receive a.png: the file has "
    await settled(lambda: sum(text.startswith(told) for text in channel.texts()) == 2, room.hurry(gateway))
    assert await room.statuses() == {InboundStatus.DONE: 2}


async def test_a_file_that_cannot_be_had_loses_no_message(room) -> None:
    agent = Reader()
    gateway, channel = await room.open(agent)
    failures = {
        "a.txt": (b"", "the file is empty"),
        "b.png": (TooLarge("larger than the platform gives"), "larger than the platform gives"),
        "c.png": (InvalidArgument("not with us"), "not with us"),
        "d.png": (RuntimeError("broken"), "the file could not be downloaded: RuntimeError"),
    }
    for number, (name, (failure, why)) in enumerate(failures.items(), 1):
        channel.kept_files[name] = failure
        await channel.say("look", files=[name])
        await all_answered(room, gateway, number)
        assert agent.got[-1][0].missing == why
        told = f"I could not receive {name}: {why}"
        await settled(
            lambda told=told: any(one.startswith(told) for one in channel.texts()), room.hurry(gateway)
        )


async def test_a_file_that_cannot_be_had_now_is_tried_again_with_its_run(room) -> None:
    agent = Reader()
    gateway, channel = await room.open(agent)
    channel.kept_files["a.png"] = ServerUnavailable("not now")
    await channel.say("look", files=["a.png"])
    [(_, mailbox)] = room.opened
    await settled(agent.began(1))
    await mailbox.settled()
    channel.kept_files["a.png"] = PNG
    await tried(room, agent, 2)
    await all_answered(room, gateway, 1)
    assert agent.seen == [(_hash(PNG),)]
    assert channel.texts() == ["read"]


async def test_a_file_that_never_can_be_had_is_given_up_after_some_tries(room) -> None:
    agent = Reader()
    gateway, channel = await room.open(agent)
    await channel.say("look", files=["a.png"])
    await tried(room, agent, 3)
    await all_answered(room, gateway, 1)
    assert len(agent.read) == 3
    assert agent.got[-1][0].missing == "the file could not be downloaded: there is no such file"


async def test_while_its_channel_is_not_connected_a_file_uses_up_no_tries(room) -> None:
    agent = Reader()
    gateway, channel = await room.open(agent)
    channel.kept_files["a.png"] = ServerUnavailable("not connected")
    await channel.say("look", files=["a.png"])
    channel.liveness.state = AdapterState.RECONNECTING
    await tried(room, agent, 5)
    channel.kept_files["a.png"] = PNG
    channel.liveness.state = AdapterState.CONNECTED
    await tried(room, agent, 6)
    await all_answered(room, gateway, 1)
    assert agent.seen == [(_hash(PNG),)]
    assert channel.texts()[-1] == "read"


async def test_a_run_that_begins_before_its_channel_is_connected_waits_for_it(room) -> None:
    agent = Reader()
    gateway, channel = await room.open(agent)
    states = (AdapterState.STOPPED, AdapterState.CONNECTING, AdapterState.FAILED)
    for number, state in enumerate(states, 1):
        channel.kept_files["a.png"] = ServerUnavailable("not connected")
        channel.liveness.state = state
        await channel.say("look", files=["a.png"])
        await settled(agent.began(number))
        for _ in range(20):  # in which it would be fetched in vain
            await room.stores.files.files("chat", ["m1"])
        channel.kept_files["a.png"] = PNG
        channel.liveness.state = AdapterState.CONNECTED
        await all_answered(room, gateway, number)
        assert (len(agent.read), agent.seen) == (number, [(_hash(PNG),)] * number)


async def test_a_channel_that_does_not_come_back_costs_a_message_its_file_and_not_its_answer(room) -> None:
    agent = Reader()
    gateway, channel = await room.open(agent)
    await channel.say("look", files=["a.png"])
    channel.liveness.state = AdapterState.RECONNECTING
    await tried(room, agent, 12)
    channel.liveness.state = AdapterState.CONNECTED
    await all_answered(room, gateway, 1)
    assert "read" in channel.texts()
    assert agent.got[-1][0].missing == "the file could not be downloaded: there is no such file"


HOSTILE = [
    ("../../etc/passwd", b"root:x:0:0", "passwd", "text/plain"),
    ("C:\\x\\evil\x1b[31m\u202egnp.exe", b"MZ\x90\0", "evil[31mgnp.exe", None),
    (
        "photo.png",
        b"<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>",
        "photo.png",
        "image/svg+xml",
    ),
    ("a.jpg", b"<!DOCTYPE html><script>1</script>", "a.jpg", "text/html"),
    ("bomb.zip", b"PK\x03\x04" + b"\0" * 90, "bomb.zip", "application/zip"),
    ("..", b"\0\1\2", "file-1", "application/octet-stream"),
    ("n" * 300 + ".txt", "grün".encode(), "n" * 96 + ".txt", "text/plain"),
    (
        "a.docx",
        b"PK\x03\x04",
        "a.docx",
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ),
]


async def test_names_are_made_safe_and_types_are_read_off_the_bytes(room) -> None:
    agent = Reader()
    gateway, channel = await room.open(agent)
    for number, (name, content, kept, media_type) in enumerate(HOSTILE, 1):
        channel.kept_files[name] = content
        event = channel.message("look", files=[name])
        event.media = (replace(event.media[0], mime="image/png"),)
        await channel.handle_message(event)
        await all_answered(room, gateway, number)
        [file] = agent.got[-1]
        assert (file.name, agent.seen[-1]) == (kept, (_hash(content),))
        assert media_type is None or file.media_type == media_type


async def test_a_kind_of_files_may_be_refused_whatever_its_sender_says_it_is(room) -> None:
    agent = Reader()
    config = replace(CONFIG, max_media_bytes_by_kind={"application": 0})
    gateway, channel = await room.open(agent, config=config)
    channel.kept_files |= {"a.png": b"%PDF-1.7", "b.png": PNG}
    await channel.say("look", files=["a.png", "b.png"])
    await all_answered(room, gateway, 1)
    [[refused, taken]] = agent.got
    assert (refused.missing, taken.missing) == ("files of this type are not accepted", None)


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        (("grep", "-qv", "EVIL"), None),
        (("grep", "-q", "EVIL"), "the virus scanner rejected the file"),
        (("/nowhere/scanner",), "the virus scanner failed"),
    ],
)
async def test_a_scanner_is_given_each_file_and_fails_closed(room, command, missing) -> None:
    agent = Reader()
    gateway, channel = await room.open(agent, config=replace(CONFIG, scan_command=command))
    channel.kept_files["a.txt"] = b"harmless\n"
    await channel.say("look", files=["a.txt"])
    await all_answered(room, gateway, 1)
    assert agent.got[0][0].missing == missing


async def test_a_scanner_is_given_what_a_run_leaves_and_the_chat_is_told_what_it_refuses(
    room, tmp_path
) -> None:
    agent = Agent()
    for name, content in {"good.txt": b"harmless", "bad.txt": b"EVIL"}.items():
        (tmp_path / name).write_bytes(content)
    told = []

    async def leave(activation, sink):
        files = activation.control.files
        for position, name in enumerate(("good.txt", "bad.txt")):
            await files.leave(tmp_path / name, position)
        try:
            await files.leave_text("worse.txt", "EVIL")
        except InvalidArgument as error:
            told.append(error.message)
        return done(activation, "here they are")

    agent.act = leave
    config = replace(CONFIG, scan_command=("grep", "-qv", "EVIL"))
    gateway, channel = await room.open(agent, config=config)
    await channel.say("send")
    await all_answered(room, gateway, 1)
    assert [content for _, content in channel.sent_files] == [b"harmless"]
    assert told == ["worse.txt cannot be sent: the virus scanner rejected the file"]
    refusals = [
        wording.file_not_sent(one, "the virus scanner rejected the file") for one in ("bad.txt", "worse.txt")
    ]
    assert channel.texts() == ["here they are", *refusals]


async def test_what_a_run_leaves_is_sent_behind_its_answer(room, tmp_path) -> None:
    agent = Agent()
    left = tmp_path / "drawn.png"
    left.write_bytes(PNG)
    (tmp_path / "notes.txt").write_bytes(b"words")

    async def draw(activation, sink):
        files = activation.control.files
        await files.leave(left, 0)
        await files.leave(tmp_path / "notes.txt", 1)
        return done(activation, "here it is")

    agent.act = draw
    gateway, channel = await room.open(agent)
    await channel.say("draw")
    await all_answered(room, gateway, 1)
    sent = [(one.name, one.kind.value, one.mime, content) for one, content in channel.sent_files]
    assert sent == [
        ("drawn.png", "photo", "image/png", PNG),
        ("notes.txt", "document", "text/plain", b"words"),
    ]
    assert channel.texts() == ["here it is"]


def _part(channel, name: str, text: str = "", **more):
    return channel.message(text, files=[name], metadata={"media_group_id": "g1"}, **more)


async def test_an_album_of_three_is_one_turn_with_three_files(room) -> None:
    agent = Reader()
    gateway, channel = await room.open(agent)
    channel.kept_files |= {f"{name}.png": PNG + name.encode() for name in "abc"}
    await channel.handle_message(_part(channel, "a.png", "the three"))
    await channel.handle_message(_part(channel, "b.png"))
    await channel.handle_message(_part(channel, "c.png"))
    await channel.say("and this")
    await all_answered(room, gateway, 4)
    assert agent.read == [["the three"], ["and this"]]
    assert [[file.name for file in files] for files in agent.got] == [["a.png", "b.png", "c.png"], []]
    assert await room.statuses() == {InboundStatus.DONE: 4}
    assert (await gateway.counts()).adds_up


def _in_group(channel, album: str, name: str, text: str = "", *, user: str = "u1", addressed: bool = False):
    more = {"chat": "g1", "chat_type": "group", "user": user, "addressed": addressed}
    return channel.message(text, files=[name], metadata={"media_group_id": album}, **more)


async def test_albums_that_come_one_behind_another_keep_all_their_files(room) -> None:
    """Only the first picture of an album has a caption, which addresses the bot."""
    agent = Reader()
    gateway, channel = await room.open(agent, config=replace(CONFIG, group_sessions_per_user=False))
    names = ["a", "b", "c", "d", "e"]
    channel.kept_files |= {f"{name}.png": PNG + name.encode() for name in names}
    await channel.handle_message(_in_group(channel, "g1", "a.png", "first", addressed=True))
    await channel.handle_message(_in_group(channel, "g2", "b.png", "second", user="u2", addressed=True))
    await channel.handle_message(_in_group(channel, "g2", "c.png", user="u2"))
    await channel.handle_message(_in_group(channel, "g1", "d.png"))
    await channel.handle_message(_in_group(channel, "g3", "e.png", user="u3"))
    await all_answered(room, gateway, 4)
    assert [[file.name for file in files] for files in agent.got] == [["a.png", "d.png"], ["b.png", "c.png"]]


async def test_a_picture_that_comes_long_after_its_album_is_a_turn_of_its_own(room) -> None:
    agent = Reader()
    gateway, channel = await room.open(agent)
    channel.kept_files |= {"a.png": PNG, "b.png": PNG}
    await channel.handle_message(_in_group(channel, "g1", "a.png", "look", addressed=True))
    await all_answered(room, gateway, 1)
    await channel.handle_message(_in_group(channel, "g1", "b.png"))
    await all_answered(room, gateway, 2)
    assert [[file.name for file in files] for files in agent.got] == [["a.png"], ["b.png"]]


async def test_what_is_said_while_an_album_is_put_together_stays_behind_what_was_said_before(room) -> None:
    agent = Reader()
    gateway, channel = await room.open(agent)
    channel.kept_files |= {"a.png": PNG, "b.png": PNG}
    await channel.handle_message(_part(channel, "a.png", "the album"))
    await channel.handle_message(_part(channel, "b.png"))
    await channel.say("second")
    edit = room.stores.intake_log.edit

    async def merged(key, body):
        await channel.say("third")
        return await edit(key, body)

    room.stores.intake_log.edit = merged
    await all_answered(room, gateway, 4)
    assert agent.read == [["the album"], ["second"], ["third"]]


async def test_an_album_of_one_picture_three_times_has_three_files_after_a_crash_too(room) -> None:
    agent = Reader()
    gateway, channel = await room.open(agent)
    channel.kept_files["a.png"] = PNG
    for words in ("thrice", "", ""):
        await channel.handle_message(_part(channel, "a.png", words))
    move = room.stores.intake_log.move

    cut = []

    async def cut_off(*given):
        cut.append(given)
        raise StoreUnavailable("killed between the two changes of a merge")

    room.stores.intake_log.move = cut_off
    await settled(lambda: cut, room.hurry(gateway))
    room.stores.intake_log.move = move
    await room.close()
    gateway, channel = await room.open(agent, channel=channel)
    await all_answered(room, gateway, 3)
    assert [[file.name for file in files] for files in agent.got] == [["a.png"] * 3]
    assert agent.read == [["thrice"]]


async def test_an_album_that_a_crash_cut_off_is_one_turn_after_the_start(room) -> None:
    agent = Reader()
    gateway, channel = await room.open(agent)
    channel.kept_files |= {f"{name}.png": PNG for name in "ab"}
    await channel.handle_message(_part(channel, "a.png", "the two"))
    await channel.handle_message(_part(channel, "b.png"))
    await room.close()
    assert agent.read == []
    gateway, channel = await room.open(agent, channel=channel)
    await all_answered(room, gateway, 2)
    assert agent.read == [["the two"]]
    assert [len(files) for files in agent.got] == [2]


async def test_speech_is_written_down_and_a_failing_endpoint_is_contained(room) -> None:
    agent = Reader()
    gateway, channel = await room.open(agent)
    sound = b"OggS" + b"\0" * 20
    channel.kept_files |= {"a.ogg": sound, "b.ogg": sound + b"2"}
    said = {"a.ogg": "good morning\0"}

    async def transcribe(path, file) -> str:
        if file.name not in said:
            raise ProviderFailed("the endpoint is down")
        return said[file.name]

    room.files.transcribe = transcribe
    for name in ("a.ogg", "b.ogg"):
        event = channel.message("", files=[name])
        event.media = (replace(event.media[0], kind=MessageType.VOICE),)
        await channel.handle_message(event)
    await all_answered(room, gateway, 2)
    [[first], [second]] = agent.got
    assert (first.transcript, first.media_type) == ("good morning", "audio/ogg")
    assert second.transcript is None
    assert second.missing == "the recording could not be transcribed: the endpoint is down"
    assert second.sha256 is not None
    await settled(lambda: any("could not be transcribed" in text for text in channel.texts()))
