"""The files that programs, ACP agents and agents on other servers get, and the files that they return."""

import asyncio
import base64
import stat
from pathlib import Path

from postroom.contracts.activation import RunActivation
from postroom.contracts.messages import Boundary, ContentBlock, Message, Role
from postroom.contracts.records import replace
from postroom.executors.acp.conversation import file_blocks
from postroom.executors.requests import OUTBOX, file_room, without_files
from postroom.ports import RunControl
from postroom.stores.memory import MemoryRunStores
from run_files import PNG, Files, file


def _message(number: int, text: str = "look") -> Message:
    blocks = (ContentBlock(text=text), ContentBlock(type="image", data={"ref": "x"}))
    return Message(role=Role.USER, content=blocks, id=f"m{number}")


def _asked(files: Files, *messages: Message, **more: object) -> RunActivation:
    stores = MemoryRunStores()
    control = RunControl(coordinator=stores.coordinator, threads=stores.threads, files=files, **more)  # type: ignore[arg-type]
    return replace(RunActivation.new("t", messages), control=control)


async def test_a_program_finds_its_files_in_a_private_folder_that_is_removed(tmp_path: Path) -> None:
    files = Files(
        file(1, "image/png", missing="no model takes it"),
        file(2, "image/png", sha256=None, missing="it is gone"),
    )
    folder = tmp_path / "run"
    async with file_room(_asked(files, _message(1), _message(2, "")), files, folder) as room:
        [(_, path)] = room.received
        seen = await asyncio.to_thread(lambda: (path.read_bytes(), stat.S_IMODE(folder.stat().st_mode)))
        assert seen == (PNG, 0o700)
        first, second = room.activation.messages
        assert f"- {path} (image/png, 8 bytes)" in first.text()
        assert room.variables[OUTBOX] in first.text()
        assert '"f2" (image/png, 8 bytes): missing, it is gone' in second.text()
    assert not await asyncio.to_thread(folder.exists)


async def test_plain_files_alone_are_taken_from_the_outbox(tmp_path: Path) -> None:
    files = Files()
    async with file_room(_asked(files), files, tmp_path / "run") as room:
        outbox = Path(room.variables[OUTBOX])

        def leave() -> None:
            (outbox / "b.txt").write_bytes(b"b")
            (outbox / "a.txt").write_bytes(b"a")
            (outbox / "folder").mkdir()
            (outbox / "passwd").symlink_to("/etc/passwd")

        await asyncio.to_thread(leave)
        await room.send()
    assert files.left == [(0, "a.txt", b"a"), (1, "b.txt", b"b")]


async def test_what_comes_to_a_program_at_work_names_its_files_too(tmp_path: Path) -> None:
    files = Files(file(1, "image/png"))

    class Pending:
        async def waiting(self, boundary, *, group=None):
            return (_message(1, "this too"),)

    async with file_room(_asked(files, pending=Pending()), files, tmp_path / "run") as room:
        for _ in range(2):
            [told] = await room.activation.control.pending.waiting(Boundary.NEXT_STEP)
        assert told.text().startswith("this too\n\nFiles that came with this message:\n- ")
        path = Path(room.variables[OUTBOX]).parent / "in"
        assert [one.name for one in await asyncio.to_thread(lambda: list(path.iterdir()))] == ["1-f1"]


async def test_an_agent_on_another_server_is_told_of_files_it_does_not_get() -> None:
    files = Files(file(1, "image/png"), file(2, "audio/ogg", transcript="hello"))
    [first, second] = (await without_files(_asked(files, _message(1, ""), _message(2)))).messages
    assert first.text() == (
        '[The file "f1" (image/png, 8 bytes) is missing: agents on another server get no files]'
    )
    assert second.text().endswith('is missing: its transcript: "hello"]')
    assert [name for name, _ in files.refused] == ["f1"]


def test_an_acp_agent_is_given_what_it_says_it_takes_and_links_to_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(PNG)
    received = [
        (file(1, "image/png")[0], path),
        (file(2, "audio/ogg")[0], path),
        (file(3, "image/svg+xml")[0], path),
    ]
    image, sound, drawing = file_blocks(received, {"image": True})
    assert image == {"type": "image", "mimeType": "image/png", "data": base64.b64encode(PNG).decode()}
    assert (sound["type"], drawing["type"]) == ("resource_link", "resource_link")
    assert sound["uri"] == path.as_uri()
    assert [one["type"] for one in file_blocks(received, {})] == ["resource_link"] * 3
