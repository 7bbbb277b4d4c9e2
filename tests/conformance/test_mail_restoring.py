"""A store that is filled with whole rows, as a rebuild from an archive does."""

from collections.abc import Mapping, Sequence

import pytest

from conformance.boxes import Box, on_both
from conformance.promises import given
from postroom.contracts.errors import StateError, StoreError
from postroom.contracts.mail import LogBounds, Term

FAR = 2**53 + 1
"""The first whole number that a floating-point number cannot hold."""


def archive() -> Mapping[str, Sequence[Mapping[str, object]]]:
    """Return rows in no helpful order: referring ones before those referred to, later before earlier."""
    sent = {"project_id": 5, "sender_id": 8, "sender_name": "Ada", "thread_id": "t", "importance": "high"}
    agent = {"project_id": 5, "program": "p", "model": "m", "created_at": 1, "last_active_at": 2}
    held = {"project_id": 5, "agent_id": 8, "pattern": "a", "prefix": "a", "exclusive": 1, "created_at": 1}
    part = {"position": 0, "sha256": "x", "name": "n", "media_type": "t", "size": 1}
    return {
        "file_reservations": [{"id": 3, "expires_at": 10, "ttl": 9, **held}],
        "attachments": [{"message_id": FAR, **part}],
        "blobs": [{"sha256": "x", "content": b"x"}],
        "recipients": [
            {"message_id": FAR, "agent_id": 8, "kind": "to", "seq": 4, "position": 1},
            {"message_id": FAR, "agent_id": 9, "kind": "cc", "seq": 1, "position": 0, "read_at": 7},
        ],
        "messages": [
            {"id": FAR, "subject": "Later", "body_md": "plum", "created_ts": 6, "ack_required": 1, **sent},
            {"id": 4, "subject": "First", "body_md": "pear", "created_ts": 5, **sent},
        ],
        "agents": [
            {"id": 9, "name": "Ben", "name_key": "ben", "inbox_seq": 1, **agent},
            {"id": 8, "name": "Ada", "name_key": "ada", "inbox_seq": 4, **agent},
        ],
        "projects": [{"id": 5, "slug": "s", "human_key": "/s", "created_at": 1, "spelling": "/s"}],
    }


@on_both
def test_an_empty_store_is_filled_from_whole_rows_and_numbers_go_on(box: Box) -> None:
    box.restore_rows(archive())
    ada, later = box.agent(5, "ADA"), box.message(FAR)
    assert (box.project("s").id, ada.id, ada.inbox_seq, ada.program) == (5, 8, 4, "p")
    assert (later.id, later.ack_required, later.created_at, later.importance) == (FAR, True, 6, "high")
    assert [(one.name, one.kind, one.seq, one.read_at) for one in box.recipients([FAR])[FAR]] == [
        ("Ben", "cc", 1, 7),
        ("Ada", "to", 4, None),
    ]
    box.settle()
    head = box.threads(5, limit=9)[0]
    assert (head.first_id, head.last_id, head.subject, head.messages) == (4, FAR, "First", 2)
    assert [hit.message.id for hit in box.search(5, Term("plum"), order="newest", limit=9)] == [FAR]
    held = box.live_reservations(5, now=9)
    assert [(one.id, one.holder, one.exclusive) for one in held] == [(3, "Ada", True)]
    assert [one.sha256 for one in box.attachments([FAR])[FAR]] == ["x"]
    sent = box.put(ada, [ada]).id
    assert (sent, box.recipients([sent])[sent][0].seq) == (FAR + 1, 5)
    assert given.agent(box, 5, "Cyd").id == 10


@on_both
def test_rows_that_make_no_whole_store_are_refused(box: Box) -> None:
    project = {"id": 5, "slug": "s", "human_key": "/s", "created_at": 1}
    for rows, refusal in (
        ({"projects": [project], "secrets": []}, StateError),
        ({"projects": [{**project, "x) --": 1}]}, StateError),
        ({"projects": [project, {"id": 6}]}, StoreError),
    ):
        with pytest.raises(refusal):
            box.restore_rows(rows)
    assert box.projects(limit=9) == []
    box.restore_rows({"projects": [project]})
    with pytest.raises(StateError):  # it holds mail now
        box.restore_rows({"projects": [{**project, "id": 6, "slug": "t"}]})


def test_the_log_of_a_project_that_was_put_back_goes_on_and_nothing_is_told_of_its_rows(box: Box) -> None:
    names = ((5, "s"), (6, "t"))
    rows = [
        {"id": number, "slug": name, "human_key": f"/{name}", "created_at": 1, "spelling": f"/{name}"}
        for number, name in names
    ]
    box.restore_rows({"projects": rows}, {"s": 41, "gone": 7})
    assert box.log_bounds(5) == LogBounds(oldest=41, newest=42)
    [entry] = box.project_events(5, after=41, limit=9)
    assert (entry.seq, entry.happening.kind, entry.happening.at) == (42, "project.made", 1)
    assert box.log_bounds(6) == LogBounds(oldest=0, newest=0)
    for number, newest in ((5, 43), (6, 1)):
        given.agent(box, number, "Ada")
        assert box.log_bounds(number).newest == newest
    [entry] = box.project_events(6, after=0, limit=9)
    assert entry.happening.kind == "agent.registered"
