"""What the model is shown of a thread on which several messages were queued."""

from datetime import timedelta

from dispatch.conftest import Room
from dispatch_runtime import runtime_of
from postroom.contracts.activation import BusyPolicy, RunActivation
from postroom.contracts.errors import RateLimited, Unauthorized
from postroom.contracts.inference import InferenceRequest, InferenceResult
from postroom.runtime import ScriptedModel


def asked(text: str) -> RunActivation:
    return RunActivation.new("t", [text], agent_id="agent")


def answers(*texts: str) -> list[InferenceResult]:
    return [InferenceResult.text(text) for text in texts]


def shown(request: InferenceRequest) -> list[str]:
    return [message.text() for message in request.messages]


async def test_a_queued_message_is_seen_by_its_own_run_and_by_those_after_it(room: Room) -> None:
    model = ScriptedModel(answers("A", "B", "C"))
    async with runtime_of(room, model) as runtime:
        mailbox = room.mailbox(runtime)
        for text in ("a", "b", "c"):
            await mailbox.submit_background(asked(text))
        await mailbox.settled()
    assert [shown(request) for request in model.requests] == [
        ["a"],
        ["a", "A", "b"],
        ["a", "A", "b", "B", "c"],
    ]


async def test_a_run_that_is_tried_again_sees_what_was_answered_meanwhile_before_its_question(
    room: Room,
) -> None:
    model = ScriptedModel([RateLimited("later"), *answers("B", "A", "C")])
    async with runtime_of(room, model) as runtime:
        mailbox = room.mailbox(runtime)
        await mailbox.submit_background(asked("a").delivered(retry_delay_ms=1_000, max_retry_delay_ms=1_000))
        await mailbox.settled()
        room.clock.advance(timedelta(milliseconds=1))
        await mailbox.submit_background(asked("b"))
        await mailbox.settled()
        room.clock.advance(timedelta(seconds=5))
        await mailbox.poll()
        await mailbox.settled()
        await mailbox.submit_background(asked("c"))
        await mailbox.settled()
    seen = [shown(request) for request in model.requests]
    assert seen[:3] == [["a"], ["b"], ["b", "B", "a"]]
    assert seen[3] == ["a", "A", "b", "B", "c"]


async def test_what_joins_a_queued_run_is_seen_by_it_alone(room: Room) -> None:
    model = ScriptedModel(answers("A", "B", "C"))
    async with runtime_of(room, model) as runtime:
        mailbox = room.mailbox(runtime)
        for text, policy in (
            ("a", BusyPolicy.QUEUE),
            ("b", BusyPolicy.QUEUE),
            ("b2", BusyPolicy.COLLECT),
            ("c", BusyPolicy.QUEUE),
        ):
            await mailbox.submit_background(asked(text), strategy=policy)
        await mailbox.settled()
    assert [shown(request) for request in model.requests] == [
        ["a"],
        ["a", "A", "b", "b2"],
        ["a", "A", "b", "b2", "B", "c"],
    ]


async def test_a_replayed_message_is_shown_once_and_behind_what_was_answered_before(room: Room) -> None:
    model = ScriptedModel([Unauthorized("no key"), *answers("B", "A", "C")])
    async with runtime_of(room, model) as runtime:
        mailbox = room.mailbox(runtime)
        failed = await mailbox.submit_background(asked("a"))
        await mailbox.submit_background(asked("b"))
        await mailbox.settled()
        await mailbox.replay_dead_letter(failed.dispatch_id)
        await mailbox.settled()
        await mailbox.submit_background(asked("c"))
        await mailbox.settled()
    seen = [shown(request) for request in model.requests]
    assert seen == [["a"], ["a", "b"], ["b", "B", "a"], ["b", "B", "a", "A", "c"]]


async def test_what_an_interrupt_ended_in_the_queue_is_shown_in_the_order_of_asking(room: Room) -> None:
    model = ScriptedModel(answers("A", "D"))
    async with runtime_of(room, model) as runtime:
        mailbox = room.mailbox(runtime)
        for text in ("a", "b", "c"):
            await mailbox.submit_background(asked(text))
        await mailbox.submit_background(asked("d"), strategy=BusyPolicy.INTERRUPT)
        await mailbox.settled()
    assert [text for text in shown(model.requests[-1]) if text != "A"] == ["a", "b", "c", "d"]


async def test_what_was_rolled_back_is_not_shown(room: Room) -> None:
    model = ScriptedModel(answers("A", "D", "E"))
    async with runtime_of(room, model) as runtime:
        mailbox = room.mailbox(runtime)
        for text in ("a", "b"):
            await mailbox.submit_background(asked(text))
        await mailbox.submit_background(asked("d"), strategy=BusyPolicy.ROLLBACK)
        await mailbox.settled()
        assert "b" not in shown(model.requests[-1])
        assert shown(model.requests[-1])[-1] == "d"
        await mailbox.submit_background(asked("e"))  # nor is it to those that come later
        await mailbox.settled()
    assert "b" not in shown(model.requests[-1])
    assert shown(model.requests[-1])[-1] == "e"
