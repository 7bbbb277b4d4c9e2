"""Attachments: read before the transaction, from inside the project's folder only, never too large."""

import base64
import hashlib
import io
import os
import socket
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mail_room import Room, room_in_memory
from postroom.contracts.errors import InvalidArgument, InvalidPath, TooLarge, UnknownAgent, WrongToken
from postroom.mail.attachments import load_attachments, make_preview
from postroom.mail.commands import AttachmentIn
from postroom.mail.context import Caller, LoadedAttachment, Rules

room = room_in_memory

RULES = Rules(
    max_attachment_bytes=1_000, max_attachments_bytes=2_500, max_attachments=4, inline_image_max_bytes=200
)


def _b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _load(*asked: AttachmentIn, root: Path | str = "/", rules: Rules = RULES) -> list[LoadedAttachment]:
    return load_attachments(asked, root=str(root), rules=rules)


def _content(name: str, content: bytes, rules: Rules = RULES) -> LoadedAttachment:
    return _load(AttachmentIn(name=name, content_base64=_b64(content)), rules=rules)[0]


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _picture(size: tuple[int, int] = (64, 48), form: str = "PNG", mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.effect_noise(size, 60).convert(mode).save(out, format=form)
    return out.getvalue()


def test_content_is_known_by_its_hash_and_keeps_its_name_type_and_size() -> None:
    loaded = _content("notes.txt", b"hello")
    assert loaded.content == b"hello"
    assert loaded.attachment.sha256 == hashlib.sha256(b"hello").hexdigest()
    assert (loaded.attachment.name, loaded.attachment.media_type, loaded.attachment.size) == (
        "notes.txt",
        "text/plain",
        5,
    )
    assert loaded.preview is None
    assert loaded.attachment.preview_sha256 is None
    empty = _content("x.zzz-unknown", b"").attachment
    assert (empty.size, empty.media_type) == (0, "application/octet-stream")


def test_a_name_is_kept_without_folders_and_invisible_characters() -> None:
    kept = {"a/b.txt": "b.txt", "..\\..\\b.txt": "b.txt", "/etc/passwd": "passwd", "C:\\x\\y.md": "y.md"}
    kept |= {"a\nb\x1b[31m.txt": "ab[31m.txt", "a\u202etxt.exe": "atxt.exe"}
    kept |= dict.fromkeys(("..", ".", "/", "\n", " . "), "attachment")
    kept |= {name: name for name in (".gitignore", "x" * 255, "ü.txt")}
    assert {name: _content(name, b"x").attachment.name for name in kept} == kept


def test_a_file_is_read_from_inside_the_project(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_bytes(b"inside")
    for path in ("sub/a.txt", "./sub/a.txt", "sub/../sub/a.txt", str(tmp_path / "sub" / "a.txt")):
        loaded = _load(AttachmentIn(path=path), root=tmp_path)[0]
        assert (loaded.content, loaded.attachment.name) == (b"inside", "a.txt")
    (tmp_path / "b").symlink_to(tmp_path / "sub" / "a.txt")
    assert _load(AttachmentIn(path="b"), root=tmp_path)[0].content == b"inside"
    renamed = _load(AttachmentIn(path="sub/a.txt", name="b.md"), root=tmp_path)[0]
    assert renamed.attachment.name == "b.md"
    for root in (tmp_path / "nowhere", "C:\\work\\app"):
        with pytest.raises(InvalidPath):
            _load(AttachmentIn(path="b"), root=root)


ELSEWHERE = (
    ". .. ../secret sub/../../secret /etc/hostname missing missing/../ok sub ~/x link-out link-up/secret"
)
OUTSIDE = [*ELSEWHERE.split(), "loop", "pipe", "socket", "dangling", "", "a\x00b", "x" * 5_000, "sub/" * 500]


def test_what_lies_outside_or_is_no_plain_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    (root / "ok").write_bytes(b"ok")
    (tmp_path / "secret").write_bytes(b"secret")
    links = {
        "link-out": tmp_path / "secret",
        "link-up": tmp_path,
        "loop": root / "loop",
        "dangling": root / "no",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(root)  # the address of a socket may not be long
        listener.bind("socket")
        for path in OUTSIDE:
            before = _open_files()
            with pytest.raises(InvalidPath) as caught:
                _load(AttachmentIn(path=path), root=root)
            assert _open_files() == before, "nothing is left open"
            assert "secret" not in str(caught.value.details)
            assert len(str(caught.value)) < 400


def test_an_attachment_is_a_path_or_a_name_with_content_in_base64() -> None:
    for fields in (
        *({}, {"name": "a"}, {"content_base64": "QQ=="}, {"name": "", "content_base64": "QQ=="}),
        *({"path": "a", "content_base64": "QQ=="}, {"path": "a", "name": "b", "content_base64": "QQ=="}),
    ):
        with pytest.raises(InvalidArgument, match="path"):
            _load(AttachmentIn(**fields))
    for text in ("Q", "QQ", "QQ=", "Q*==", "QQ==QQ", "Q Q=", "ÄÄ==", "data:text/plain;base64,QQ=="):
        with pytest.raises(InvalidArgument, match="base64"):
            _load(AttachmentIn(name="a", content_base64=text))


def test_each_limit_is_kept_to_the_byte(tmp_path: Path) -> None:
    (tmp_path / "full").write_bytes(b"x" * 1_000)
    (tmp_path / "over").write_bytes(b"x" * 1_001)
    assert _content("a", b"x" * 1_000).attachment.size == 1_000
    assert _load(AttachmentIn(path="full"), root=tmp_path)[0].attachment.size == 1_000
    for one in (AttachmentIn(name="a", content_base64=_b64(b"x" * 1_001)), AttachmentIn(path="over")):
        with pytest.raises(TooLarge) as caught:
            _load(one, root=tmp_path)
        assert caught.value.value == 1_001
    with pytest.raises(TooLarge):
        _load(AttachmentIn(name="a", content_base64="A" * 1_000_000))
    part = AttachmentIn(name="a", content_base64=_b64(b"x" * 833))
    assert len(_load(part, part, part, AttachmentIn(name="b", content_base64=_b64(b"y")))) == 4
    with pytest.raises(TooLarge, match="together"):
        _load(part, part, part, AttachmentIn(name="b", content_base64=_b64(b"yy")))
    small = AttachmentIn(name="a", content_base64="")
    assert len(_load(*[small] * 4)) == 4
    with pytest.raises(TooLarge, match="4"):
        _load(*[small] * 5)


def test_a_large_picture_gets_a_small_webp_beside_the_original() -> None:
    for kind in ("PNG RGB", "PNG P", "PNG LA", "JPEG RGB", "GIF P", "WEBP RGBA", "BMP RGB"):
        form, mode = kind.split()
        content = _picture((700, 600), form, mode)
        loaded = _content(f"shot.{form.lower()}", content, Rules())
        assert loaded.content == content
        assert loaded.preview is not None
        assert loaded.attachment.preview_sha256 == hashlib.sha256(loaded.preview).hexdigest()
        with Image.open(io.BytesIO(loaded.preview)) as shown:
            assert (shown.format, max(shown.size)) == ("WEBP", 512)
    assert _content("shot.png", _picture((8, 8)), Rules()).preview is None


def _png_of(width: int, height: int) -> bytes:
    """Return a tiny file that unpacks to a picture of this size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )


def test_what_is_no_picture_or_would_unpack_to_too_much_is_kept_without_a_preview() -> None:
    for size in [(7_000, 7_000), (12_000, 12_000), (60_000, 60_000), (2**31 - 1, 1), (0, 5)]:
        loaded = _content("bomb.png", _png_of(*size) + b" " * 300, Rules(inline_image_max_bytes=10))
        assert loaded.preview is None, size
    for content in [
        *(
            b"",
            b"not a picture",
            b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>",
            _picture()[:200],
        ),
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(/etc/passwd) (r) file\n",
        *(_picture()[:-20] + b"x" * 20, b"\x89PNG\r\n\x1a\n" + b"\xff" * 400, b"GIF89a" + b"\xff" * 400),
        *(b"RIFF\xff\xff\xff\xffWEBPVP8 " + b"\xff" * 400, b"\xff\xd8\xff\xe1\xff\xff" + b"\xff" * 400),
    ]:
        loaded = _content("x.png", content, Rules(inline_image_max_bytes=0))
        assert loaded.content == content
        assert loaded.preview is None or loaded.preview.startswith(b"RIFF"), content


SAMPLES = [
    _picture(form=form, mode=mode)
    for form, mode in (("PNG", "RGB"), ("JPEG", "RGB"), ("GIF", "P"), ("BMP", "RGB"), ("WEBP", "RGB"))
]


@given(
    st.sampled_from(SAMPLES),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=8),
    st.integers(0, 4),
)
@settings(max_examples=20)
def test_a_spoilt_picture_is_never_an_error(sample: bytes, spoilt: list[tuple[int, int]], cut: int) -> None:
    content = bytearray(sample)
    for position, value in spoilt:
        content[position % len(content)] = value
    make_preview(bytes(content[: len(content) - cut * len(content) // 5]))


async def _sending(room: Room, root: Path, **more: Any) -> dict[str, Any]:
    await room.call("ensure_project", human_key=str(root))
    for name in ("Ada", "Ben"):
        await room.call("register_agent", project_key=str(root), program="p", model="m", name=name)
    return {
        "project_key": str(root),
        "sender_name": "Ada",
        "to": ["Ben"],
        "subject": "s",
        "body_md": "b",
        **more,
    }


async def test_a_message_carries_its_attachments_in_order_and_equal_bytes_are_kept_once(
    room: Room, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(b"same")
    message = await _sending(room, tmp_path)
    files = [
        {"path": "a.txt"},
        {"name": "b.bin", "content_base64": _b64(b"same")},
        {"name": "c.bin", "content_base64": ""},
    ]
    sent = await room.call("send_message", **message, attachments=files)
    arrived = (await room.inbox("Ben", project_key=str(tmp_path)))[0]
    assert [one["name"] for one in arrived["attachments"]] == ["a.txt", "b.bin", "c.bin"]
    assert all(one.pop("resource").startswith("mail://attachment/") for one in arrived["attachments"])
    assert arrived["attachments"] == sent["deliveries"][0]["payload"]["attachments"]
    sha256 = arrived["attachments"][0]["sha256"]
    assert arrived["attachments"][1]["sha256"] == sha256
    assert await room.store.read(lambda tx: tx.blob(sha256)) == b"same"


async def test_a_reply_carries_attachments_and_a_preview_is_stored_beside(room: Room, tmp_path: Path) -> None:
    room.mail.rules = Rules(inline_image_max_bytes=100)
    message = await _sending(room, tmp_path)
    first = await room.call("send_message", **message)
    shot = {"name": "shot.png", "content_base64": _b64(_picture())}
    answered = await room.call(
        "reply_message",
        project_key=str(tmp_path),
        sender_name="Ben",
        message_id=first["deliveries"][0]["payload"]["id"],
        body_md="b",
        attachments=[shot],
    )
    attached = answered["deliveries"][0]["payload"]["attachments"][0]
    preview = await room.store.read(lambda tx: tx.blob(attached["preview_sha256"]))
    assert preview is not None
    assert preview.startswith(b"RIFF")


async def test_a_bad_attachment_means_that_nothing_is_sent(room: Room, tmp_path: Path) -> None:
    message = await _sending(room, tmp_path)
    good = {"name": "a", "content_base64": ""}
    for kind, bad in (
        (InvalidPath, {"path": "../x"}),
        (InvalidPath, {"path": "/etc/hostname"}),
        (InvalidPath, {"path": "."}),
        (InvalidArgument, {"path": "a\x00"}),
        (InvalidArgument, {"name": "a", "content_base64": "*"}),
        (InvalidArgument, {}),
        (InvalidArgument, {"path": "a", "more": 1}),
        (InvalidArgument, {"path": "x" * 5_000}),
        (InvalidArgument, {"name": "x" * 256, "content_base64": ""}),
        (InvalidPath, "a.txt"),  # read as its path, and there is no such file
    ):
        await room.refused(kind, "send_message", **message, attachments=[good, bad])
    await room.refused(TooLarge, "send_message", **message, attachments=[good] * 21)
    await room.refused(InvalidArgument, "send_message", **message, attachments=[good] * 101)
    room.mail.rules = RULES
    over = {"name": "big", "content_base64": _b64(b"x" * 1_001)}
    await room.refused(TooLarge, "send_message", **message, attachments=[over])


async def test_files_are_read_for_nobody_who_may_not_act_there(room: Room, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x")
    message = await _sending(room, tmp_path, attachments=[{"path": "a.txt"}])
    await room.refused(UnknownAgent, "send_message", **{**message, "sender_name": "Nobody"})
    await room.refused(WrongToken, "send_message", **message, caller=Caller(agent_token="no such token"))


async def test_a_repeated_call_is_answered_alike_though_the_file_is_gone(room: Room, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x")
    message = await _sending(room, tmp_path, attachments=[{"path": "a.txt"}], idempotency_key="k")
    first = await room.call("send_message", **message)
    (tmp_path / "a.txt").unlink()
    assert await room.call("send_message", **message) == first
    assert len(await room.inbox("Ben", project_key=str(tmp_path))) == 1
