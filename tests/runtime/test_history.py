"""The model's view of a thread: pure decisions."""

from hypothesis import given
from hypothesis import strategies as st

from postroom.contracts.messages import Message, MessageMetadata, Role, ToolCall
from postroom.contracts.records import replace
from postroom.runtime.checkpoint import as_seen_by_model, has_input_after, own_answer, without_former_output
from table_rows import each_row


def asks(*ids: str, text: str = "") -> Message:
    return Message.assistant(text, tool_calls=[ToolCall(id=id, name="x") for id in ids])


def by(message: Message, run_id: str, id: str) -> Message:
    return replace(message, id=id, metadata=MessageMetadata(run_id=run_id))


def seen(*messages: Message) -> list[str]:
    return [
        f"{one.role}:{one.text()}{[call.id for call in one.tool_calls] or ''}"
        for one in as_seen_by_model(messages)
    ]


HI = Message.user("hi")


@each_row(
    "messages, expected",
    [
        ([HI, asks("a"), Message.tool("a", "1")], ["user:hi", "assistant:['a']", "tool:1"]),
        ([HI, asks("a")], ["user:hi"]),
        ([HI, asks("a", text="well")], ["user:hi", "assistant:well"]),
        ([asks("a", "b"), Message.tool("b", "2")], ["assistant:['b']", "tool:2"]),
        (
            [asks("a", "b"), Message.tool("b", "2"), HI, Message.tool("a", "1")],
            ["assistant:['a', 'b']", "tool:1", "tool:2", "user:hi"],
        ),
        ([Message.tool("z", "lost"), HI], ["user:hi"]),
        (
            [asks("a"), Message.tool("a", "1"), asks("a"), Message.tool("a", "2")],
            ["assistant:['a']", "tool:1", "assistant:['a']", "tool:2"],
        ),
        ([asks("a"), Message.tool("a", "1"), Message.tool("a", "again")], ["assistant:['a']", "tool:1"]),
    ],
)
def test_calls_and_answers_stand_together(messages: list[Message], expected: list[str]) -> None:
    assert seen(*messages) == expected


@given(st.lists(st.one_of(
    st.just(HI),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True).map(lambda ids: asks(*ids)),
    st.sampled_from("abcd").map(lambda id: Message.tool(id, "x")),
), max_size=12))  # fmt: skip
def test_a_provider_takes_whatever_is_in_a_thread(messages: list[Message]) -> None:
    open_calls: list[str] = []
    for one in as_seen_by_model(messages):
        if one.role is Role.TOOL:
            assert one.tool_call_id == open_calls.pop(0)
        else:
            assert open_calls == []
            open_calls = [call.id for call in one.tool_calls]
    assert open_calls == []


def test_former_output_is_left_out_up_to_where_the_run_began_again() -> None:
    first, second = by(Message.assistant("old"), "r1", "m2"), by(Message.assistant("new"), "r1", "m4")
    other = by(Message.assistant("other"), "r0", "m1")
    thread = [other, first, replace(HI, id="m3"), second]
    assert [one.id for one in without_former_output(thread, "r1", "m2")] == ["m1", "m3", "m4"]
    assert [one.id for one in without_former_output(thread, "r1", "m4")] == ["m1", "m3"]
    assert [one.id for one in without_former_output(thread, "r1", None)] == ["m1", "m2", "m3", "m4"]
    assert [one.id for one in without_former_output(thread, "r1", "gone")] == ["m1", "m2", "m3", "m4"]


def test_only_what_people_say_goes_before_a_question() -> None:
    assert not has_input_after([HI, asks("a")], "a")
    assert not has_input_after([asks("a"), Message.internal("told")], "a")
    assert has_input_after([asks("a"), Message.internal("told"), HI], "a")
    assert has_input_after([HI], "a")
    assert not has_input_after([], "a")


def test_the_last_word_of_the_run_is_its_answer() -> None:
    answer = by(Message.assistant("yes"), "r1", "m1")
    assert own_answer([HI, answer], "r1") == answer
    assert own_answer([HI, answer], "r2") is None
    assert own_answer([answer, HI], "r1") is None
    assert own_answer([by(asks("a"), "r1", "m1")], "r1") is None
    assert own_answer([], "r1") is None
