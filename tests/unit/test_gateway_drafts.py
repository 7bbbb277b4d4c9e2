"""The view of a chat while an answer is written: growing drafts, at a limited rate."""

from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.gateway.capabilities import ChannelCapabilities, LengthUnit
from postroom.gateway.drafts import Draft, Look, Step
from table_rows import each_row

CHANNEL = ChannelCapabilities(limit=100, unit=LengthUnit.UTF16, edits=True)


def fresh(least_new: int = 1) -> Draft:
    """A draft that is read once a second."""
    return Draft(CHANNEL, least_new=least_new, interval_ms=1_000)


def text_of(step: Step) -> str | None:
    return None if step is None else step.text


def drafted(text: str = "some words") -> Draft:
    """A draft that shows this text since instant 0."""
    draft = fresh()
    assert text_of(draft.add(text, now=0)) == text
    assert draft.done(now=0) is None
    return draft


def test_a_platform_that_asks_to_be_left_alone_is() -> None:
    draft = drafted()
    draft.add(" more", now=1_000)
    assert draft.failed(now=1_000, retry_after_ms=7_000) is None
    assert draft.add(" and more", now=7_999) is None
    assert text_of(draft.add("", now=8_000)) == "some words more and more"


def test_a_draft_closes_its_fence_and_an_edit_that_would_show_the_same_is_left_out() -> None:
    draft = fresh()
    assert text_of(draft.add("```py\na = 1\n", now=0)) == "```py\na = 1\n```"
    draft.done(now=0)
    assert draft.add("```\n", now=1_000) is None
    assert text_of(draft.add("so", now=1_000)) == "```py\na = 1\n```\nso"


@each_row("half", ["`", "``", "```", "```py", "~~", "  ```j", "   "])
def test_half_a_line_of_a_fence_is_held_back(half: str) -> None:
    draft = drafted()
    assert draft.add("\n" + half, now=1_000) is None


@each_row("line", ["`code`", "```code```", "- `", "a~~~"])
def test_a_line_that_is_no_fence_is_shown_at_once(line: str) -> None:
    assert text_of(drafted().add("\n" + line, now=1_000)) == "some words\n" + line


def test_blank_lines_before_an_answer_are_not_shown() -> None:
    draft = fresh()
    assert draft.add(" \n\n", now=0) is None
    assert text_of(draft.add("  one", now=0)) == "  one"


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


@given(deltas=DELTAS)
@settings(max_examples=20)
def test_drafts_grow_seldom_enough(deltas: list[tuple[str, int, str]]) -> None:
    draft = fresh(5)
    now, next_look, told = 0, 0, ""
    under_way: Look | None = None
    has_failed = False

    def take(step: Step) -> None:
        nonlocal under_way, next_look
        if step is None:
            return
        assert under_way is None
        assert not has_failed
        assert now >= next_look
        assert LengthUnit.UTF16.measure(step.text) <= 100
        assert not open_marks(step.text)
        assert step.text != told
        assert step.text.startswith(told) or shorn(step.text).startswith(shorn(told))
        under_way, next_look = step, now + 1_000

    for delta, wait, outcome in deltas:
        now += wait
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
    assert draft.finish() == (bool(told) and under_way is None and not has_failed)


def shorn(text: str) -> str:
    """A text without the line that may have been added to close its fence."""
    first, _, last = text.rpartition("\n")
    return first if last.strip(" `~") == "" else text
