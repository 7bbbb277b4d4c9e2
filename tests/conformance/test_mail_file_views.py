"""The version of a file that each session of an agent has seen, and the notices of changes."""

from dataclasses import replace

from conformance.boxes import Box, on_both
from conformance.promises.given import Office
from postroom.contracts.waking import FileView


def view(agent_id: int, seen: str, *, file: str = "m:/a", now: int = 5) -> FileView:
    return FileView(file=file, viewer_id=agent_id, seen_blob=seen, used_at=now)


@on_both
def test_a_session_has_one_view_of_a_file_and_sees_those_of_writers(box: Box, here: Office) -> None:
    ada, ben = here.ada.id, here.ben.id
    first, other = view(ada, "one"), view(ben, "two")
    whole = FileView(
        **{"file": "m:/a", "viewer_id": ada, "seen_blob": "s", "written_blob": "w", "written_at": 2},
        **{"changed_blob": "c", "changed_by": ben, "changed_at": 3, "notice": 1, "used_at": 4},
    )
    for one in (first, other, view(ada, "x", file="m:/b"), whole):
        box.put_file_view(one)
    assert box.file_views(["m:/a"], viewer_id=ben) == [whole, other]
    assert box.file_views(["m:/a", "m:/b"], viewer_id=ada) == [whole, view(ada, "x", file="m:/b")]
    assert box.file_views(["m:/a", "m:/b", "m:/c"], viewer_id=ben) == [whole, other]
    assert box.file_views([], viewer_id=ada) == []


@on_both
def test_a_change_is_due_for_each_other_agent_that_read_another_version_and_was_not_told(
    box: Box, here: Office
) -> None:
    ada, ben, cyd = here.ada.id, here.ben.id, here.cyd.id
    for one in (view(ada, "old"), view(ben, "old"), view(cyd, "new"), view(ben, "", file="m:/b")):
        box.put_file_view(one)
    for file in ("m:/a", "m:/b"):
        box.note_file_change(file, "new", viewer_id=ada, now=9, since=4)
    due = replace(view(ben, "old"), changed_blob="new", changed_by=ada, changed_at=9, notice=1)
    assert [box.due_file_views(one, limit=9) for one in (ada, ben, cyd)] == [[], [due], []]
    assert box.due_file_views(ben, limit=0) == []
    box.mark_file_views_told(ben)
    box.note_file_change("m:/a", "newer", viewer_id=ada, now=10, since=4)
    assert box.due_file_views(ben, limit=9) == []
    told = replace(due, changed_blob="newer", changed_at=10, notice=2)
    assert box.file_views(["m:/a"], viewer_id=ben) == [told]


def test_a_session_that_was_away_for_long_is_left_out(box: Box, here: Office) -> None:
    ada, ben = here.ada.id, here.ben.id
    box.put_file_view(view(ben, "old", now=5))
    box.note_file_change("m:/a", "new", viewer_id=ada, now=90, since=5)
    assert box.due_file_views(ben, limit=9) == []


@on_both
def test_a_change_that_was_reverted_is_not_due(box: Box, here: Office) -> None:
    ada, ben, cyd = here.ada.id, here.ben.id, here.cyd.id
    for agent in (ben, cyd):
        box.put_file_view(view(agent, "old"))
    box.note_file_change("m:/a", "new", viewer_id=ada, now=9, since=4)
    box.mark_file_views_told(cyd)
    box.note_file_change("m:/a", "old", viewer_id=ada, now=10, since=4)
    assert [box.due_file_views(one, limit=9) for one in (ben, cyd)] == [[], []]
    box.note_file_change("m:/a", "newer", viewer_id=ada, now=11, since=4)
    assert [one.changed_blob for agent in (ben, cyd) for one in box.due_file_views(agent, limit=9)] == [
        "newer",
        "newer",
    ]


def test_old_views_are_deleted_oldest_first(box: Box, here: Office) -> None:
    for number in range(4):
        box.put_file_view(view(here.ada.id, "x", file=f"m:/{number}", now=10 + number))
    assert [box.purge_file_views(12, limit=limit) for limit in (1, 9, 9)] == [1, 1, 0]
    files = [f"m:/{number}" for number in range(4)]
    assert [one.file for one in box.file_views(files, viewer_id=here.ada.id)] == ["m:/2", "m:/3"]
