"""Messages are deleted whole and told, and no number is given out again."""

from conformance.boxes import Box, on_both
from conformance.promises.given import Office, file
from postroom.contracts.mail import Term
from postroom.contracts.waking import MessageRun


@on_both
def test_a_message_is_deleted_with_all_that_is_kept_of_it(box: Box, here: Office) -> None:
    home, a, b = here.project.id, "a" * 64, "b" * 64
    old, new = (box.put(here.ada, [here.ben], body=body, thread="t").id for body in ("plum", "plum jam"))
    for number, digest in ((old, a), (old, b), (new, b)):
        box.insert_blob(digest, digest[0].encode())
        box.insert_attachment(number, file(digest))
    box.put_message_run(
        MessageRun(message_id=old, agent_id=here.ben.id, run_id="r", delivered_at=1, ended_at=2)
    )
    box.note_answer(old, "r")
    box.settle()
    box.undo(lambda tx: tx.delete_messages(home, [old], now=9))
    assert box.message(old) is not None
    assert box.delete_messages(home, [old, 99], now=9) == [old]
    assert (box.message(old), box.answering_run(old)) == (None, None)
    assert (box.recipients([old]), box.message_runs([old])) == ({old: []}, {old: {}})
    assert (box.blob(a), box.blob(b), box.attached_in(home, [a, b])) == (None, b"b", {b})
    assert [hit.message.id for hit in box.search(home, Term("plum"), order="newest", limit=9)] == [new]
    [head] = box.threads(home, limit=9)
    assert (head.messages, head.first_id, head.last_id) == (1, new, new)
    assert box.unread_count(here.ben.id) == 1
    assert box.delete_messages(home, [old], now=9) == []
    box.delete_messages(home, [new], now=9)
    assert box.threads(home, limit=9) == []


@on_both
def test_the_number_of_a_message_that_was_deleted_is_not_given_out_again(box: Box, here: Office) -> None:
    first, newest = (box.put(here.ada, [here.ben]).id for _ in range(2))
    box.settle()
    box.delete_messages(here.project.id, [newest], now=9)
    ben = box.agents_by_id([here.ben.id])[here.ben.id]
    assert (ben.inbox_floor, ben.inbox_seq) == (2, 2)
    again = box.put(here.ada, [here.ben]).id
    assert again > newest
    found = box.inbox_events(here.ben.id, after=2, limit=9)
    assert [(one.message.id, one.seq) for one in found] == [(again, 3)]
    assert [one.message.id for one in box.inbox(here.ben.id, limit=9)] == [again, first]


def test_a_deletion_is_told_once_to_each_project_that_knew(box: Box, here: Office, there: Office) -> None:
    home = here.project.id
    both = box.put(here.ada, [here.ben, there.ben]).id
    own = box.put(here.ada, [here.cyd]).id
    hidden = box.put(here.ada, [there.ben], kind="bcc").id
    box.settle()
    box.delete_messages(home, [both, own], now=9)
    box.delete_messages(home, [hidden], now=9)

    def told(office: Office) -> list[dict[str, object]]:
        found = box.project_events(office.project.id, after=0, limit=99, kinds=("message.deleted",))
        return [dict(one.happening.detail) for one in found]

    assert told(here) == [{"messages": 2, "ids": f"{both} {own}"}, {"messages": 1, "ids": f"{hidden}"}]
    assert told(there) == [{"messages": 1, "ids": f"{both}"}]
