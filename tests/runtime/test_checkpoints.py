"""Checkpoints against others who write, and against answers that are lost."""

from collections.abc import Callable
from typing import Any

import pytest

from postroom.contracts.errors import CommitUnknown, StoreUnavailable, VersionConflict
from postroom.contracts.records import replace
from postroom.contracts.runs import PersistedState, RunStatus, Usage
from postroom.runtime import function_tool
from postroom.runtime.checkpoint import KEY, RuntimeState, read_state, with_state
from runtime.room import Room, call, calls
from table_rows import each_row


@function_tool()
async def look() -> str:
    return "seen"


class Odd:
    """A coordinator that does something else before or after some commits, counted from 1."""

    def __init__(
        self,
        real: Any,
        *,
        before: Callable[[int], Any] | None = None,
        after: Callable[[int], Any] | None = None,
    ) -> None:
        self._real, self._before, self._after, self.commits = real, before, after, 0

    async def commit(self, commit: Any, *, now: int | None = None) -> Any:
        self.commits += 1
        number = self.commits
        if self._before is not None:
            await self._before(number)
        done = await self._real.commit(commit)
        if self._after is not None:
            await self._after(number)
        return done


async def executed(room: Room, **odd: Any) -> Any:
    activation = await room.prepared()
    room.coordinator = Odd(room.stores.coordinator, **odd)
    result = await room.execute(replace(activation, control=room.again().control))
    assert result.response == "done"
    return result


def a_room() -> Room:
    used = Usage(input_tokens=10)
    return Room(script=[calls(call("look"), usage=used)], tools=[look])


async def test_a_message_of_another_does_not_hinder_a_checkpoint() -> None:
    room = a_room()

    async def says(number: int) -> None:
        if number in (2, 3):
            await room.say(f"beside {number}")

    await executed(room, before=says)
    assert [text for _, text in await room.texts()] == ["go", "beside 2", "", "seen", "beside 3", "done"]
    assert (await room.run()).steps == 2


async def test_a_checkpoint_that_is_refused_again_and_again_fails_after_some_tries() -> None:
    room = a_room()

    async def refuses(number: int) -> None:
        if number > 1:
            raise VersionConflict("somebody else wrote in between")

    with pytest.raises(VersionConflict):
        await executed(room, before=refuses)
    assert room.coordinator.commits == 1 + 8


@each_row("lost", [1, 2, 3, 4])
async def test_a_commit_whose_answer_was_lost_counts_once(lost: int) -> None:
    room = a_room()

    async def loses(number: int) -> None:
        if number == lost:
            raise CommitUnknown("the connection broke")

    await executed(room, after=loses)
    record = await room.run()
    assert [role for role, _ in await room.texts()] == ["user", "assistant", "tool", "assistant"]
    assert (record.status, record.steps, record.usage.input_tokens) == (RunStatus.DONE, 2, 10)
    assert len(record.output_message_ids) == len(set(record.output_message_ids)) == 3


async def test_a_store_that_fails_fails_the_execution_and_the_next_goes_on() -> None:
    room = a_room()

    async def down(number: int) -> None:
        if number == 3:
            raise StoreUnavailable("down")

    with pytest.raises(StoreUnavailable):
        await executed(room, before=down)
    assert (await room.run()).status is RunStatus.RUNNING
    room.coordinator = room.stores.coordinator
    await room.execute(room.again(attempt=2))
    assert [role for role, _ in await room.texts()] == ["user", "assistant", "tool", "assistant"]


async def test_what_others_write_to_the_run_between_checkpoints_is_kept() -> None:
    room = a_room()

    async def pins(number: int) -> None:
        if number == 1:
            record = await room.run()
            await room.say("also", run=replace(record, resolution_id="other", state=OTHERS))

    await executed(room, after=pins)
    record = await room.run()
    assert (record.resolution_id, record.state) == ("other", OTHERS)


OTHERS = PersistedState(revision=7, extensions={"plugin": {"n": 1}})


async def test_the_runtimes_state_leaves_that_of_others_alone() -> None:
    room = Room()
    await room.prepared()
    run = replace(await room.run(), state=OTHERS)
    assert with_state(run, RuntimeState(run_id="r1")) is run
    kept = with_state(run, RuntimeState(run_id="r1", hidden_until="m1"))
    assert kept.state.extensions["plugin"] == {"n": 1}
    assert kept.state.revision == 8
    assert read_state(kept).hidden_until == "m1"
    assert read_state(replace(kept, run_id="r2")) == RuntimeState(run_id="r2")
    assert (
        with_state(replace(kept, run_id="r2"), RuntimeState(run_id="r2")).state.extensions
        == OTHERS.extensions
    )
    odd = replace(run, state=PersistedState(extensions={KEY: {"run_id": 3}}))
    assert read_state(odd) == RuntimeState(run_id="r1")


async def test_the_run_stands_as_running_before_the_model_is_asked() -> None:
    room = Room()
    seen: list[RunStatus] = []
    stream = room.model.stream

    async def looking(request: Any) -> Any:
        seen.append((await room.run()).status)
        async for piece in stream(request):
            yield piece

    room.model.stream = looking
    await room.execute()
    assert seen == [RunStatus.RUNNING]
