"""The table of operations: each is exercised, described and safe to offer; sessions and overviews."""

import ast
from pathlib import Path

import msgspec

from mail_room import HARBOR, SHORE, Room, room_in_memory
from postroom.contracts.clock import iso
from postroom.contracts.errors import NotHolder
from postroom.contracts.operations import Operation
from postroom.mail.commands import Change, RotateAgentToken
from postroom.mail.operations import MAIL_OPERATIONS, OPERATIONS
from table_rows import each_row

room = room_in_memory

TESTS = Path(__file__).parent.parent
OURS = (
    *sorted(TESTS.glob("unit/test_mail_*.py")),
    *(TESTS / "unit" / f"test_{name}.py" for name in ("search_query", "project_paths", "agent_names")),
    *(TESTS / "unit" / f"test_{name}.py" for name in ("contact_policy", "attachments", "thread_summary")),
    *(TESTS / "unit" / f"test_{name}.py" for name in ("tasks", "catching_up", "notes")),
    TESTS / "properties" / "test_mail_properties.py",
    TESTS / "waking" / "test_waking.py",
    TESTS / "faults" / "test_mail_under_faults.py",
)

WHO = {"program": "p", "model": "m"}


def _called(path: Path) -> set[str]:
    """Return the operations that a file names in a call through `Mail.call`."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    named = (node for node in calls if isinstance(node.func, ast.Attribute) and node.func.attr == "call")
    return {node.args[0].value for node in named if node.args and isinstance(node.args[0], ast.Constant)}


def test_every_operation_is_called_by_name_in_some_test() -> None:
    called: set[str] = set().union(*(_called(path) for path in OURS))
    assert set(OPERATIONS) - called == set()
    assert called - set(OPERATIONS) == {"no_such_operation"}


@each_row("operation", MAIL_OPERATIONS)
def test_every_operation_is_described_and_fits_its_command(operation: Operation) -> None:
    assert operation.description.endswith((".", ")."))
    assert OPERATIONS[operation.name] is operation, "no two have one name"
    takes_key = "idempotency_key" in {field.name for field in msgspec.structs.fields(operation.command)}
    assert takes_key is issubclass(operation.command, Change)
    assert takes_key is operation.changes or operation.command is RotateAgentToken
    assert operation.changes or not (operation.destructive or operation.repeatable)


async def test_a_session_makes_what_is_missing_and_shows_what_waits(room: Room) -> None:
    first = await room.call("start_session", name="Ada", **WHO, task_description="t", reserve_paths=["src/"])
    assert first["project"]["human_key"] == HARBOR
    assert (first["agent"]["name"], first["agent"]["task_description"]) == ("Ada", "t")
    assert (first["unread"], first["inbox"]) == (0, [])
    assert [one["path"] for one in first["reservations"]["granted"]] == ["src/**"]
    await room.open("Ben")
    read, unread = await room.send("Ben", "Ada"), await room.send("Ben", "Ada")
    await room.call("mark_message_read", agent_name="Ada", message_id=read)
    again = await room.call("start_session", name="Ada", **WHO)
    assert again["agent"]["id"] == first["agent"]["id"]
    assert again["unread"] == 1
    assert [one["id"] for one in again["inbox"]] == [unread]
    assert "body_md" not in again["inbox"][0]
    assert again["reservations"] is None
    unnamed = [await room.call("start_session", project_key="projects-harbor", **WHO) for _ in range(2)]
    assert unnamed[0]["agent"]["id"] != unnamed[1]["agent"]["id"]


async def test_a_session_shows_as_many_messages_as_are_asked_for(room: Room) -> None:
    await room.open()
    sent = [await room.send("Ada", "Ben") for _ in range(5)]
    for limit in (0, 2, 100):
        session = await room.call("start_session", name="Ben", **WHO, inbox_limit=limit)
        assert [one["id"] for one in session["inbox"]] == sent[::-1][:limit]
        assert session["unread"] == 5


async def test_a_session_tells_of_those_who_hold_the_same_paths(room: Room) -> None:
    await room.open()
    await room.call("file_reservation_paths", agent_name="Ben", paths=["src/**"])
    session = await room.call("start_session", name="Ada", **WHO, reserve_paths=["src/a"], ttl_seconds=60)
    assert [one["agent"] for one in session["reservations"]["conflicts"][0]["holders"]] == ["Ben"]
    assert session["reservations"]["granted"][0]["expires_ts"] == iso(room.clock.now() + 60_000)


async def test_an_overview_shows_agents_threads_and_reservations_of_its_project(room: Room) -> None:
    await room.open()
    await room.open("Eve", project=SHORE)
    await room.call("retire_agent", agent_name="Cyd")
    await room.send("Ada", "Ben", thread_id="one", subject="First")
    await room.send("Ada", "Ben", thread_id="two", subject="Second")
    await room.send("Ben", "Ada", thread_id="one", subject="Again")
    await room.call("file_reservation_paths", agent_name="Ada", paths=["a"])
    shown = await room.call("show_project")
    assert [one["name"] for one in shown["agents"]] == ["Ada", "Ben"]
    assert [
        (one["thread_id"], one["subject"], one["messages"], one["last_from"]) for one in shown["threads"]
    ] == [
        ("one", "First", 2, "Ben"),
        ("two", "Second", 1, "Ada"),
    ]
    assert [one["path"] for one in shown["reservations"]] == ["a"]
    assert (await room.call("show_project", project_key=SHORE))["threads"] == []


async def test_health_counts_what_is_there(room: Room) -> None:
    health = await room.call("health_check")
    assert health == {"status": "ok", "projects": 0, "agents": 0, "messages": 0, "archive_backlog": 0}
    await room.open()
    await room.send("Ada", "Ben")
    health = await room.call("health_check")
    assert (health["projects"], health["agents"], health["messages"]) == (1, 3, 1)
    assert health["archive_backlog"] == 4


async def test_every_change_that_the_archive_shows_leaves_a_row_for_it(room: Room) -> None:
    await room.open("Ada", "Ben")
    message = await room.send("Ada", "Ben")
    held = await room.call("file_reservation_paths", agent_name="Ada", paths=["a"])
    number = held["granted"][0]["id"]
    await room.call("renew_file_reservations", agent_name="Ada")
    await room.refused(NotHolder, "release_file_reservations", agent_name="Ben", ids=[number])
    await room.call("release_file_reservations", agent_name="Ada")
    await room.call("recall_message", sender_name="Ada", message_id=message)
    await room.call("set_contact_policy", agent_name="Ben", policy="approval")
    await room.call("retire_agent", agent_name="Ben")
    await room.call("unretire_agent", agent_name="Ben")
    await room.call("register_agent", name="Ada", program="shell", model="none")
    await room.call("register_agent", name="Ada", program="other", model="none")
    rows = await room.store.read(
        lambda tx: [row.payload["record"] for row in tx.outbox.open("archive", limit=100)]
    )
    ada, ben = [one["id"] for one in (await room.call("list_agents"))["agents"]]
    reserved = f"reservation:{number}"
    assert rows == [
        *(
            *(f"agent:{ada}", f"agent:{ben}", f"message:{message}", reserved, reserved, reserved),
            f"message:{message}",
        ),
        *(f"agent:{ben}", f"agent:{ben}", f"agent:{ben}", f"agent:{ada}"),
    ]
