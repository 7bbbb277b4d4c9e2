"""What a chat is shown while an answer is written: growing drafts, seldom enough, and one final."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.contracts.errors import IllegalTransition, InvalidArgument
from postroom.gateway.capabilities import ChannelCapabilities, LengthUnit
from postroom.gateway.drafts import Draft, DraftRules, Edit, Final, Nothing, Presentation, Show, Step
from postroom.gateway.splitting import split
from table_rows import each_row

EDITING = ChannelCapabilities(limit=100, unit=LengthUnit.UTF16, edits=True, min_edit_interval_ms=1_000)
STREAMING = replace(EDITING, streams=True)
SENDING = replace(EDITING, edits=False)
EAGER = DraftRules(least_new=1)


def drafted(capabilities: ChannelCapabilities = EDITING, text: str = "some words") -> Draft:
    """A draft that shows this text since instant 0."""
    draft = Draft(capabilities, EAGER)
    assert draft.add(text, now=0) == Show(text=text)
    assert draft.done(now=0) == Nothing()
    return draft


def test_an_answer_is_shown_then_edited_then_final() -> None:
    draft = drafted()
    assert draft.add(" and more", now=1_000) == Edit(text="some words and more")
    assert draft.done(now=1_100) == Nothing()
    assert draft.finish("some words and more.", now=1_200) == Final(
        parts=("some words and more.",), edits_first=True
    )


def test_a_stream_is_shown_while_it_grows_and_its_final_is_sent_whole() -> None:
    draft = drafted(STREAMING)
    assert draft.presentation is Presentation.STREAM
    assert draft.add(" more", now=1_000) == Edit(text="some words more")
    draft.done(now=1_000)
    assert draft.finish(now=1_001) == Final(parts=("some words more",))


def test_where_nothing_can_be_edited_only_the_final_is_sent() -> None:
    draft = Draft(SENDING, EAGER)
    assert [draft.add("word " * 10, now=now) for now in (0, 5_000)] == [Nothing(), Nothing()]
    assert draft.finish(now=9_000) == Final(parts=split("word " * 20, limit=100, unit=LengthUnit.UTF16))


def test_edits_keep_their_distance_and_say_when_to_ask_again() -> None:
    draft = drafted()
    assert draft.add(" more", now=999) == Nothing(again_at=1_000)
    assert draft.step(now=1_000) == Edit(text="some words more")


def test_the_distance_is_counted_from_when_a_step_was_given() -> None:
    draft = Draft(EDITING, EAGER)
    draft.add("a", now=0)
    draft.add("b", now=1_500)
    assert draft.done(now=1_500) == Edit(text="ab")


def test_few_characters_are_not_worth_a_look() -> None:
    draft = Draft(EDITING)
    assert draft.add("x" * 23, now=0) == Nothing()
    assert draft.add("y", now=0) == Show(text="x" * 23 + "y")
    draft.done(now=0)
    assert draft.add("z" * 23, now=5_000) == Nothing()
    assert draft.add("z", now=5_000) == Edit(text="x" * 23 + "y" + "z" * 24)


def test_rules_that_never_look_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="1 or more"):
        DraftRules(least_new=0)


def test_while_a_step_is_under_way_there_is_nothing_to_do() -> None:
    draft = Draft(EDITING, EAGER)
    draft.add("one", now=0)
    assert draft.add(" two", now=9_000) == Nothing()
    assert draft.step(now=9_000) == Nothing()
    assert draft.finish(now=9_000) == Nothing()
    assert draft.done(now=9_001) == Final(parts=("one two",), edits_first=True)


def test_a_platform_that_asks_to_be_left_alone_is() -> None:
    draft = drafted()
    draft.add(" more", now=1_000)
    assert draft.failed(now=1_000, retry_after_ms=7_000) == Nothing(again_at=8_000)
    assert draft.add(" and more", now=7_999) == Nothing(again_at=8_000)
    assert draft.step(now=8_000) == Edit(text="some words more and more")


def test_a_first_draft_that_came_too_early_is_shown_later() -> None:
    draft = Draft(EDITING, EAGER)
    draft.add("one", now=0)
    assert draft.failed(now=0, retry_after_ms=3_000) == Nothing(again_at=3_000)
    assert draft.step(now=3_000) == Show(text="one")


def test_a_final_says_how_long_the_platform_wants_to_be_left_alone() -> None:
    draft = drafted()
    draft.add(" more", now=1_000)
    draft.failed(now=1_000, retry_after_ms=7_000)
    assert draft.finish(now=2_000) == Final(parts=("some words more",), edits_first=True, not_before=8_000)


def test_a_final_after_that_time_waits_for_nothing() -> None:
    draft = drafted()
    draft.add(" more", now=1_000)
    draft.failed(now=1_000, retry_after_ms=500)
    assert draft.finish(now=1_500) == Final(parts=("some words more",), edits_first=True)


@pytest.mark.parametrize("capabilities", [EDITING, STREAMING])
def test_after_one_failure_only_the_final_follows_and_is_sent_whole(
    capabilities: ChannelCapabilities,
) -> None:
    draft = drafted(capabilities)
    draft.add(" more", now=1_000)
    assert draft.failed(now=1_001) == Nothing()
    assert draft.presentation is Presentation.FINAL_ONLY
    assert draft.add(" and more", now=60_000) == Nothing()
    assert draft.finish(now=60_000) == Final(parts=("some words more and more",))


def test_there_is_one_final_and_nothing_after_it() -> None:
    draft = drafted()
    assert isinstance(draft.finish("all", now=1), Final)
    late = [draft.finish("other", now=2), draft.add("late", now=9_000), draft.step(now=9_000)]
    assert late == [Nothing()] * 3
    with pytest.raises(IllegalTransition):
        draft.done(now=9_000)


def test_what_is_not_under_way_neither_ends_nor_fails() -> None:
    draft = Draft(EDITING)
    with pytest.raises(IllegalTransition, match="done"):
        draft.done(now=0)
    with pytest.raises(IllegalTransition, match="failed"):
        draft.failed(now=0)


def test_deltas_after_the_end_change_nothing() -> None:
    draft = Draft(EDITING, EAGER)
    draft.add("one", now=0)
    draft.finish(now=1)
    draft.add(" two", now=2)
    assert draft.done(now=3) == Final(parts=("one",), edits_first=True, first_is_shown=True)


def test_a_blank_answer_has_no_part() -> None:
    assert Draft(EDITING).finish(" \n", now=0) == Final(parts=())
    assert drafted().finish("", now=1) == Final(parts=())


def test_a_draft_that_reads_as_the_final_need_not_be_edited() -> None:
    assert drafted().finish(now=1) == Final(parts=("some words",), edits_first=True, first_is_shown=True)


def test_a_draft_stands_still_when_it_is_full_and_the_final_sends_the_rest() -> None:
    draft = Draft(EDITING, EAGER)
    words = "word " * 30
    assert draft.add(words, now=0) == Show(text=words[:99])
    assert draft.done(now=0) == Nothing()
    assert draft.add(words, now=5_000) == Nothing()
    assert draft.finish(now=9_000) == Final(
        parts=(words[:99],) * 3,
        edits_first=True,
        first_is_shown=True,
    )


def test_a_draft_does_not_shrink_when_a_better_cut_lies_before_what_is_shown() -> None:
    draft = drafted(text="x" * 60 + "\n\n" + "y" * 35)
    assert draft.add("y" * 35, now=1_000) == Nothing()
    assert draft.add("z", now=9_000) == Nothing()
    assert draft.finish(now=9_000) == Final(parts=("x" * 60, "y" * 70 + "z"), edits_first=True)


def test_a_draft_closes_its_fence_and_an_edit_that_would_show_the_same_is_left_out() -> None:
    draft = Draft(EDITING, EAGER)
    assert draft.add("```py\na = 1\n", now=0) == Show(text="```py\na = 1\n```")
    draft.done(now=0)
    assert draft.add("```\n", now=1_000) == Nothing()
    assert draft.add("so", now=1_000) == Edit(text="```py\na = 1\n```\nso")


@each_row("half", ["`", "``", "```", "```py", "~~", "  ```j", "   "])
def test_half_a_line_of_a_fence_is_held_back(half: str) -> None:
    draft = drafted()
    assert draft.add("\n" + half, now=1_000) == Nothing()


@each_row("line", ["`code`", "```code```", "- `", "a~~~"])
def test_a_line_that_is_no_fence_is_shown_at_once(line: str) -> None:
    assert drafted().add("\n" + line, now=1_000) == Edit(text="some words\n" + line)


def test_blank_lines_before_an_answer_are_not_shown() -> None:
    draft = Draft(EDITING, EAGER)
    assert draft.add(" \n\n", now=0) == Nothing()
    assert draft.add("  one", now=0) == Show(text="  one")


def test_parts_of_a_final_are_numbered_where_that_is_asked_for() -> None:
    draft = Draft(EDITING, DraftRules(numbered=True))
    final = draft.finish("word " * 30, now=0)
    assert isinstance(final, Final)
    assert [part[-6:] for part in final.parts] == [" (1/2)", " (2/2)"]


DELTAS = st.lists(
    st.tuples(
        st.sampled_from(
            ["word ", "`", "``", "```", "\n", "\n\n", "py", "~~~\n", "   ", "x" * 30, "\U0001f600"]
        ),
        st.integers(0, 900),
        st.sampled_from(["done", "done", "done", "wait", "fail", "later"]),
    ),
    max_size=60,
)


def open_marks(text: str) -> bool:
    """Whether a text ends within a fence of three or more marks."""
    opened = ""
    for line in text.split("\n"):
        mark = line.lstrip(" ")
        size = len(mark) - len(mark.lstrip(mark[:1])) if mark[:1] in ("`", "~") else 0
        if size < 3 or len(line) - len(mark) > 3:
            continue
        if not opened:
            if len(line) > 80:
                continue  # it fills a part: no code has room beside it
            opened = mark[:size] if mark[0] == "~" or "`" not in mark[size:] else ""
        elif mark.startswith(opened) and not mark[size:].strip():
            opened = ""
    return bool(opened)


@given(deltas=DELTAS, streams=st.booleans())
@settings(max_examples=300)
def test_drafts_grow_seldom_enough_and_end_in_one_final(
    deltas: list[tuple[str, int, str]], streams: bool
) -> None:
    draft = Draft(STREAMING if streams else EDITING, DraftRules(least_new=5))
    now, next_look, told, text = 0, 0, "", ""
    under_way: Show | Edit | None = None
    has_failed = False

    def take(step: Step) -> None:
        nonlocal under_way, next_look
        if isinstance(step, Nothing):
            assert step.again_at is None or step.again_at > now
            return
        assert isinstance(step, Show | Edit)
        assert under_way is None
        assert not has_failed
        assert now >= next_look
        assert isinstance(step, Edit) == bool(told)
        assert LengthUnit.UTF16.measure(step.text) <= 100
        assert not open_marks(step.text)
        assert step.text != told
        assert step.text.startswith(told) or shorn(step.text).startswith(shorn(told))
        under_way, next_look = step, now + 1_000

    for delta, wait, outcome in deltas:
        now += wait
        text += delta
        take(draft.add(delta, now=now))
        if under_way is None or outcome == "wait":
            continue
        step, under_way = under_way, None
        if outcome == "done":
            told = step.text
            take(draft.done(now=now))
        elif outcome == "fail":
            has_failed = True
            take(draft.failed(now=now))
        else:
            next_look = max(next_look, now + 4_000)
            take(draft.failed(now=now, retry_after_ms=4_000))
    final = draft.finish(now=now)
    if under_way is not None:
        assert final == Nothing()
        told, final = under_way.text, draft.done(now=now)
    assert isinstance(final, Final)
    assert final.parts == split(text, limit=100, unit=LengthUnit.UTF16)
    assert final.edits_first == (bool(told) and bool(final.parts) and not streams and not has_failed)
    assert draft.finish(now=now) == draft.step(now=now) == Nothing()


def shorn(text: str) -> str:
    """A text without the line that may have been added to close its fence."""
    first, _, last = text.rpartition("\n")
    return first if last.strip(" `~") == "" else text
