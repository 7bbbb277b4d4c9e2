"""How a text is cut into parts: nothing too long, nothing lost, each part readable alone."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.contracts.errors import InputError, InvalidArgument
from postroom.gateway.capabilities import SMALLEST_LIMIT, LengthUnit
from postroom.gateway.splitting import cut, split
from table_rows import each_row

CHARACTERS, UTF16, UTF8 = LengthUnit
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
WORDS = [
    "word", "a", " ", "  ", "\n", "\n\n", "\t", "\r\n", "`", "``", "`x y`", "``a ` b``", "\\`", "    indented",
    "```", "```py", "````", "~~~", "~~~ sh -x", "   ```js", "    ```", "- item", "# head", "| a | b |",
    "é", "e\u0301", "漢字", "\U0001f600", FAMILY, "\U0001f1e9\U0001f1ea", "1\ufe0f\u20e3", "\u00a0", "\u200b",
    "loooooooooooooooooooooooooooooooooooooooooooooong", "x = 1", "한", "\u1112\u1161\u11ab", "\U0001f44d\U0001f3fd",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=12)), max_size=60).map("".join)
LINES = st.lists(
    st.lists(st.sampled_from(WORDS), max_size=3).map(lambda ws: "".join(ws)[:30] + "\n"), max_size=40
).map("".join)
LIMITS = st.integers(SMALLEST_LIMIT, 120)
UNITS = st.sampled_from(LengthUnit)


def marker(line: str) -> str:
    found = re.match(r" {0,3}(`{3,}|~{3,})", line)
    return found[1] if found else ""


def open_fence(text: str) -> str | None:
    """The line that opens the fence in which a text ends, read without the code under test."""
    opened: str | None = None
    for line in text.split("\n"):
        mark = marker(line)
        rest = line.lstrip(" ")[len(mark) :]
        if opened is None:
            if mark and (mark[0] == "~" or "`" not in rest):
                opened = line
        elif mark.startswith(marker(opened)) and not rest.strip(" \t\r"):
            opened = None
    return opened


@given(text=TEXTS, limit=LIMITS, unit=UNITS)
@settings(max_examples=20)
def test_no_part_is_blank_or_too_long(text: str, limit: int, unit: LengthUnit) -> None:
    parts = split(text, limit=limit, unit=unit)
    assert [part for part in parts if unit.measure(part) > limit or not part.strip()] == []
    assert bool(parts) == bool(text.strip())


@given(text=TEXTS, limit=LIMITS, unit=UNITS)
@settings(max_examples=20)
def test_pieces_follow_one_another_with_nothing_but_white_space_between(
    text: str, limit: int, unit: LengthUnit
) -> None:
    place = 0
    for piece in cut(text, limit=limit, unit=unit):
        assert place <= piece.start < piece.end
        assert not text[place : piece.start].strip()
        if piece.opening:
            assert piece.start == place, "in a fence white space is kept"
        place = piece.end
    assert not text[place:].strip()


@given(text=LINES, limit=st.integers(90, 140), unit=st.sampled_from([CHARACTERS, UTF16]))
@settings(max_examples=20)
def test_parts_hold_whole_fences_and_what_was_added_is_what_is_open(
    text: str, limit: int, unit: LengthUnit
) -> None:
    pieces = cut(text, limit=limit, unit=unit)
    parts = split(text, limit=limit, unit=unit)
    assert [part for part in parts if open_fence(part) is not None] == []
    assert parts == tuple(one.opening + text[one.start : one.end] + one.closing for one in pieces)
    for piece in pieces:
        opened = open_fence(text[: piece.start])
        assert piece.opening == ("" if opened is None else opened.rstrip() + "\n")
        opened = open_fence(text[: piece.end])
        assert piece.closing.strip() == ("" if opened is None else marker(opened))


CLUSTERS = [
    "e\u0301", "a\u0308\u0323", FAMILY, "1\ufe0f\u20e3", "\u2764\ufe0f", "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd",
    "\u1112\u1161\u11ab", "\u0928\u093f", "\u0915\u094d\u0937", "\ud83d\ude00", "x", "\U0001f600",
    "\U0001f3f4\U000e0067\U000e0062\U000e007f",
]  # fmt: skip


@given(clusters=st.lists(st.sampled_from(CLUSTERS), max_size=80), limit=LIMITS, unit=UNITS)
@settings(max_examples=20)
def test_no_grapheme_is_divided(clusters: list[str], limit: int, unit: LengthUnit) -> None:
    parts = list(split("".join(clusters), limit=limit, unit=unit))
    assert "".join(parts) == "".join(clusters)
    for part in parts:
        while part:
            assert part.startswith(clusters[0])
            part = part.removeprefix(clusters.pop(0))


@given(
    words=st.lists(st.sampled_from(["`a b`", "``c ` d``", "word", "x" * 20, "`e\nf`", "\\`"]), max_size=40),
    limit=LIMITS,
)
@settings(max_examples=20)
def test_no_inline_code_is_divided(words: list[str], limit: int) -> None:
    for part in split(" ".join(words), limit=limit, unit=CHARACTERS):
        rest = part
        while rest:
            word = words.pop(0)
            assert rest.startswith(word)
            rest = rest.removeprefix(word).removeprefix(" ")


@each_row("limit", [-1, 0, SMALLEST_LIMIT - 1])
def test_a_limit_without_room_is_refused(limit: int) -> None:
    with pytest.raises(InvalidArgument, match="too small") as refused:
        split("text", limit=limit, unit=CHARACTERS)
    assert isinstance(refused.value, InputError)


X, Y, Z = "x" * 20, "y" * 10, "z" * 10


@each_row(
    "text, parts",
    [
        *((f"{X}\n\n{Y}\n{Z} {Z}", (X, f"{Y}\n{Z} {Z}")), (f"{X}\n{Y} {Z}", (X, f"{Y} {Z}"))),
        *((f"{Y} {Y} {Z} {Z}", (f"{Y} {Y} {Z}", Z)), (f"{Y} {Y}  {Z} {Z}", (f"{Y} {Y}", f"{Z} {Z}"))),
        (f"{X}{X}{X}", (f"{X}{X}"[:32], f"{X}{X}{X}"[32:])),
        (f"a\n\n{X} {Y} {Z}", (f"a\n\n{X}", f"{Y} {Z}")),
        (f"a\n\n{X}{X}", ("a", (X + X)[:32], (X + X)[32:])),
        (f"{X} {Y}   \n \n    code\n", (f"{X} {Y}", "    code")),
        *((f"\n\n{X} {Y}", (f"{X} {Y}",)), (f"  {X}{X}", (f"  {X}{X}"[:32], X[:10]))),
        *((f"{X}`{Y} {Z}`", (X, f"`{Y} {Z}`")), (f"{Y}\n```{Y} {Z}`", (Y, f"```{Y} {Z}`"))),
        (f"```\n{X}\nz\n``````", (f"```\n{X}\n```", "```\nz\n``````")),
        (f"```\n{X}{X}{X}\n```", (f"```\n{X}xxxx\n```",) * 2 + ("```\nxxxxxxxxxxxx\n```",)),
        ("\U0001f1e9\U0001f1ea" * 20 + "x", ("\U0001f1e9\U0001f1ea" * 16, "\U0001f1e9\U0001f1ea" * 4 + "x")),
        ("x" + "\U0001f1e9\U0001f1ea" * 17, ("x" + "\U0001f1e9\U0001f1ea" * 15, "\U0001f1e9\U0001f1ea" * 2)),
        ("\u200d" * 31 + "\ud83d\ude00", ("\u200d" * 31, "\ud83d\ude00")),
        *((f"{X}\u00a0{Y} {Z}", (f"{X}\u00a0{Y}", Z)), (f"{X} ~~~ {Y}", (f"{X} ~~~", Y))),
        (f"{X} {Z[:5]} ~~~~~~ {Y}", (X, f"{Z[:5]} ~~~~~~ {Y}")),
        *((f"{X} `{Y} {Z}`", (X, f"`{Y} {Z}`")), (f"{X} don`t {Y} {Z}", (f"{X} don`t", f"{Y} {Z}"))),
        (f"`{X} {X}`", (f"`{X}", f"{X}`")),
        (f"{X}xx `\n- `{Y} {Z}`", (f"{X}xx `", f"- `{Y} {Z}`")),
    ],
)
def test_where_32_characters_are_cut(text: str, parts: tuple[str, ...]) -> None:
    assert split(text, limit=32, unit=CHARACTERS) == parts


@each_row("text, parts", [
        ("```py\na = 1\n\nb = 22222222222222222222222222\n```", ("```py\na = 1\n\n```", "```py\nb = 22222222222222222222222222\n```")),
        ("  ~~~~ sh\n" + f"{X}\n" * 2 + "  ~~~~", (f"  ~~~~ sh\n{X}\n  ~~~~", f"  ~~~~ sh\n{X}\n  ~~~~")),
        (f"{X}\n```\n{Y}\n```\n{Z}", (f"{X}\n```\n{Y}\n```", Z)),
        (f"{X}\n\n```\n{Y}\n\n{Z}\n```\n", (X, f"```\n{Y}\n\n{Z}\n```")),
        (f"```\n{X}{X}\n```", (f"```\n{(X + X)[:32]}\n```", "```\nxxxxxxxx\n```")),
        ("```\nnever closed", ("```\nnever closed\n```",)),
        ("```\nnever closed\n", ("```\nnever closed\n```",)),
        ("text\n```", ("text\n```\n```",)),
        (f"````\n```\n{X}\n{Y}\n```\n````", (f"````\n```\n{X}\n````", f"````\n{Y}\n```\n````")),
        (f"    ```\n    {X} {Y}\n    ```", (f"    ```\n    {X}", f"{Y}\n    ```")),
        (f"```a`b\n{X} {Y} {Z}", (f"```a`b\n{X} {Y}", Z)),
        (f"```{X}{X}\na\n```", (f"```{X}{X}"[:40], "xxx\na\n```")),
        (f"```{X}\n{X}\n{Y}\n```", (f"```{X}\n{X[:12]}\n```", f"```\n{X[12:]}\n{Y}\n```")),
        (f"```\n{X} \u0301{Y}{Y}\n```", (f"```\n{X} \u0301{Y}\n```", f"```\n{Y}\n```")),
        (f"```\n{X}  {Y} {Z}\n```", (f"```\n{X}  \n```", f"```\n{Y} {Z}\n```")),
    ])  # fmt: skip
def test_where_40_characters_with_a_fence_are_cut(text: str, parts: tuple[str, ...]) -> None:
    assert split(text, limit=40, unit=CHARACTERS) == parts


MEGABYTES = {
    "prose": "Some words in a line, and `code` too.\n\n" * 25_000,
    **{"one word": "x" * 1_000_000, "spaces in code": "```\na" + " " * 1_000_000},
    **{"spaces": "a" + " " * 1_000_000 + "b", "backticks": "`" * 1_000_000, "spans": "`a` ``b " * 125_000},
    **{"fences": "```\nx\n```\n" * 100_000, "marked lines": "``` ` a b\n" * 100_000},
    **{"a marked line": "~~~" + " a" * 500_000, "flags": "\U0001f1e9\U0001f1ea" * 250_000},
    **{"marks": "e" + "\u0301" * 500_000, "backslashes": "\\" * 1_000_000 + "`"},
}


@pytest.mark.long
@each_row("kind", MEGABYTES)
def test_a_megabyte_takes_time_that_grows_with_its_length_only(kind: str) -> None:
    text = MEGABYTES[kind]
    before = time.process_time()
    parts = split(text, limit=4_096, unit=UTF16)
    assert time.process_time() - before < 10, "less than one on a slow machine, minutes were it quadratic"
    assert max(map(UTF16.measure, parts)) <= 4_096
