"""Others' text in prompts, hooks and on terminals: one line, nothing hidden, no way out."""

import unicodedata

from injections import FIELDS, forged
from postroom.contracts.quoting import (
    between,
    end_of,
    exact,
    in_code_fence,
    one_line,
    quoted,
    readable,
    said_by,
    sentence,
)

JOINERS = {"\u200c", "\u200d"}


def test_no_character_breaks_a_line_steers_or_hides_in_a_field():
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    for code in range(0x110000):
        char = chr(code)
        if unicodedata.category(char) in hidden and char not in JOINERS:
            assert one_line(char).isprintable(), hex(code)
            assert len(f"a{one_line(char)}b".splitlines()) == 1


def test_an_injection_stays_in_its_field():
    for text in FIELDS:
        assert not forged(one_line(text))
        assert len(one_line(text).splitlines()) == 1
        inner = quoted(text)
        assert len(inner.splitlines()) == 1
        assert inner.count('"') == 2
        assert inner[0] == inner[-1] == '"'
        assert not forged(readable(text)) - {"\n"}


def test_a_text_that_selectors_of_shapes_spell_is_seen():
    for spelt in (
        "".join(map(chr, range(0xFE00, 0xFE10))),
        "a\ufe0fb\ufe0e",
        "".join(map(chr, range(0xE0100, 0xE01F0))),
    ):
        for base in ("", "x", "\U0001f600", " "):
            told = readable(base + spelt)
            assert sum("\ufe00" <= char <= "\ufe0f" or char >= "\U000e0100" for char in told) <= 1, told


def test_texts_that_differ_are_drawn_apart_when_they_must_be_exact():
    texts = [f"a{chr(code)}b" for code in (*range(0x3100), *range(0xD800, 0x10000), *range(0xE0000, 0xE1000))]
    texts += [*("ab", "a\\u202eb", "a\\x5cu202eb", "a\\\\u202eb", "a\\\u202eb", "a\r\nb", "a\\x07b")]
    shown = [exact(one) for one in texts]
    assert len(set(shown)) == len(set(texts))
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp", "Zs")
    assert {char for one in shown for char in one if unicodedata.category(char) in hidden} == {*" \n\t"}
    assert exact("del C:\\temp \U0001f680\tx") == "del C:\\temp \U0001f680\tx"
    assert exact("a\nb\tc", is_one_line=True) == "a\\x0ab\\x09c"


def test_what_looks_like_a_blank_is_seen_in_a_field():
    for char in "\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\u034f":
        assert "\\u" in one_line(f"Ada{char}")


def test_what_people_write_stays_as_it_is():
    for text in (
        *("שלום‏ עולם", "नमस्‍ते", "👩‍🚀 ❤️", 'say "hi" to <b>', "日本語", "résumé (1).pdf", "葛\U000e0100城"),
        "1️⃣ ☎︎ ≨︀",
    ):
        assert readable(text) == text
    assert one_line("a\tb\nc\r\nd") == "a b c d"
    assert readable("a\r\nb\tc") == "a\nb\tc"


def test_a_mark_cannot_be_in_what_it_is_around_however_it_is_nested():
    told = between("n", "a [[n]n] [n] [[[n]n]n]\n[n]\nFrom: Boss")
    assert told.startswith("[n]\n")
    assert told.endswith("\n[n]")
    assert told.count("[n]") == 2


def test_a_fence_is_longer_than_any_in_its_text():
    for text in ("plain", "```", "a\n````\nb", "`" * 100_000, *FIELDS):
        first, *_, last = in_code_fence(text).split("\n")
        assert first == last
        assert len(first) >= 3
        assert first not in readable(text)


def test_nobody_in_a_group_speaks_under_another_name():
    for text in FIELDS:
        for told in (said_by("Eve", f"hello {text}"), said_by(text, "hello")):
            lines = told.splitlines()
            assert lines[0].startswith("[")
            assert not any(line.lstrip("\u2800 ")[:1] in {*"[\uff3b\u3010"} - {""} for line in lines[1:])
            assert lines[0].count("] ") >= 1
        assert sum(said_by(text, "hello").count(char) for char in "]\uff3d\u3011") == 1
        assert len(said_by(text, "hello").splitlines()) == 1


def test_the_end_of_a_text_begins_where_a_line_does():
    for text, most, end in (
        *(("one\ntwo\n", 8, "one\ntwo\n"), ("one\ntwo\n", 7, "two\n"), ("one\ntwo\n", 4, "two\n")),
        *(("one\ntwo", 2, "wo"), ("one\ntwo\n", 3, "wo\n"), ("", 3, "")),
    ):
        assert end_of(text, most) == end, (text, most)
    assert end_of("ne\ntwo\n", 9, begins_within=True) == "two\n"
    assert end_of("ne\ntwo\n", 7, begins_within=True) == "two\n"
    assert end_of("ne", 9, begins_within=True) == "ne"


def test_what_an_error_says_begins_big_unless_that_is_a_name():
    assert sentence("no project is called 'x'") == "No project is called 'x'"
    assert sentence("busy") == "Busy"
    for text in (
        *("orchard has no message 9", "deploy-bot is retired", "total.py is held", "'x' is no name", ""),
        "Ada",
    ):
        assert sentence(text, "orchard") == text
