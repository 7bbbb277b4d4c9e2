"""The beginning of an id is accepted in place of it, as long as no other id begins so."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from postroom.contracts.errors import InvalidArgument, StaleDecision, UnknownRun
from postroom.services.cut_ids import whole_id
from postroom.testing import ManualClock
from work_room import SLUG, TOKEN, WorkRoom, opened


@pytest_asyncio.fixture
async def room(clock: ManualClock) -> AsyncIterator[WorkRoom]:
    async with opened(clock, "Ada", "Ash", "Fay", runners=("Ash", "Fay")) as made:
        yield made


async def given_up(room: WorkRoom) -> tuple[str, str]:
    """Have a run become a dead letter; return its id and its dispatch's."""
    await room.send("Ada", "Fay")
    await room.turn()
    [one, *_] = await room.operator.dead()
    return str(one["run_id"]), str(one["dispatch_id"])


def test_an_id_is_meant_by_all_of_it_or_by_a_beginning_that_no_other_has() -> None:
    ids = ("ab1", "ab12", "b2")
    for given, meant in {"ab1": "ab1", "ab12": "ab12", "b": "b2", "c": None, "": None, "b22": None}.items():
        assert whole_id(given, ids, what="runs", remedy="look") == meant, given
    with pytest.raises(
        InvalidArgument, match="several runs have ids that begin with 'ab': ab1, ab12"
    ) as refused:
        whole_id("ab", ids, what="runs", remedy="look")
    assert refused.value.remedy == "use more characters of the id: look"


async def test_a_run_is_named_by_the_beginning_of_its_dispatch(room: WorkRoom) -> None:
    run_id, dispatch_id = await given_up(room)
    for named in (run_id, run_id[:8], run_id[:-2], dispatch_id, dispatch_id[:-1], dispatch_id[:-4]):
        assert (await room.operator.named(named)).run_id == run_id, named
    with pytest.raises(UnknownRun):
        await room.operator.named(f"{dispatch_id}0")
    again = await room.operator.replay(dispatch_id[:-1])
    assert again.parent_run_id == run_id


async def test_what_several_runs_begin_with_is_refused_and_nothing_changes(room: WorkRoom) -> None:
    _, first = await given_up(room)
    await room.send("Ada", "Ash")
    await room.turn()
    for act in (room.operator.discard, room.operator.replay, room.operator.cancel):
        with pytest.raises(InvalidArgument, match="several runs have ids that begin with"):
            await act(first[:8])
    assert [one["dispatch_id"] for one in await room.operator.dead()] == [first]


async def test_a_page_is_found_by_an_id_that_was_cut(room: WorkRoom) -> None:
    run_id, dispatch_id = await given_up(room)
    browser = room.browser()
    for named in (run_id[:-2], dispatch_id, dispatch_id[:-2]):
        answer = await browser.get(f"/p/{SLUG}/runs/{named}?output=raw")
        assert (answer.status_code, answer.headers["location"]) == (
            303,
            f"/p/{SLUG}/runs/{run_id}?output=raw",
        )
    assert (await browser.get(f"/p/{SLUG}/runs/{run_id}")).status_code == 200
    assert (await browser.get(f"/p/{SLUG}/runs/{run_id}0")).status_code == 404


async def test_the_beginning_of_an_answered_questions_number_never_answers_another(room: WorkRoom) -> None:
    for _ in range(2):
        await room.send("Ada", "Ash")
        await room.turn()
        if len(room.agents.question_ids) == 1:
            [first] = room.agents.question_ids
            await room.questions.answer(first, True, why="")
            await room.turn()
    second = room.agents.question_ids[-1]
    assert second != first
    for stale in (first, first[:5]):
        with pytest.raises(
            StaleDecision, match=f"was answered already.*Ash has other open questions: {second}"
        ) as refused:
            await room.questions.answer(stale, True, why="")
        assert refused.value.details == {"open": [second]}
    with pytest.raises(StaleDecision, match="a question without a number is not open"):
        await room.questions.answer(" ", True, why="")
    assert [one.number for one in await room.look(room.questions.open_questions, SLUG)] == [second]


async def test_a_question_is_answered_by_the_beginning_of_its_number(room: WorkRoom) -> None:
    await room.send("Ada", "Ash")
    await room.turn()
    [number] = room.agents.question_ids
    operator = room.browser(logged_in=False, Authorization=f"Bearer {TOKEN}")
    answered = await operator.post("/admin/questions", json={"number": number[:3].upper(), "answer": "no"})
    assert (answered.status_code, answered.json()["number"]) == (200, number)
