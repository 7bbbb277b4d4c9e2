"""The input of a search box: operators in a valid position, everything else taken literally."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mail_room import Room, room_in_memory
from postroom.contracts.errors import InvalidArgument, UnknownProject
from postroom.contracts.mail import All, AnyOf, Not, Phrase, Query, Term
from postroom.mail.query import parse_query
from postroom.stores.mail.search_index import fts5
from table_rows import each_row

room = room_in_memory

A, B, C = Term("a"), Term("b"), Term("c")

PARSED: dict[str, Query | None] = {
    **{"": None, "  \t\n ": None, "a": A, " a ": A, "a b": All((A, B)), "a AND b": All((A, B))},
    **{"a OR b": AnyOf((A, B)), "a NOT b": Not(A, B), "a NOT b NOT c": Not(A, AnyOf((B, C)))},
    **{"a OR b c": AnyOf((A, All((B, C)))), "(a OR b) c": All((AnyOf((A, B)), C))},
    **{"a b NOT c": Not(All((A, B)), C), "a NOT (b OR c)": Not(A, AnyOf((B, C)))},
    **{'"a b"': Phrase(("a", "b")), '"a  b': Phrase(("a", "b"))},
    **{'"a" "b"': All((Phrase(("a",)), Phrase(("b",)))), "a*": Term("a", prefix=True)},
    **{"a**": Term("a", prefix=True), "*a": Term("*a"), "a*b": Term("a*b")},
    **{"subject:a": Term("a", field="subject"), "SUBJECT:a*": Term("a", prefix=True, field="subject")},
    **{"from:a": Term("a", field="sender"), "sender_name:a": Term("sender_name:a")},
    'body:"a b"': Phrase(("a", "b"), field="body"),
    "topic:(a OR b)": AnyOf((Term("a", field="topic"), Term("b", field="topic"))),
    "topic:(a NOT b)": Not(Term("a", field="topic"), Term("b", field="topic")),
    "topic:(a subject:b)": All((Term("a", field="topic"), Term("b", field="subject"))),
    **{"port:8080": Term("port:8080"), "http://a.b/c": Term("http://a.b/c"), "subject:": Term("subject:")},
    **{"subject: a": All((Term("subject:"), A)), "subject:subject:a": Term("a", field="subject")},
    **{"or": Term("or"), "AND": Term("AND"), "OR": Term("OR"), "NOT": Term("NOT")},
    **{"NOT a": All((Term("NOT"), A)), "OR a": All((Term("OR"), A)), "a OR": All((A, Term("OR")))},
    **{"a AND": All((A, Term("AND"))), "a NOT": All((A, Term("NOT"))), "(a": A, "a)": A, "((a))": A},
    **{")(": None, "()": None, '""': None, '"': None, "()a()": A, "- + ! ^ * ?": None, "a - b": All((A, B))},
    **{"a^2": Term("a^2"), "NEAR(a b)": All((Term("NEAR"), All((A, B)))), "col : a": All((Term("col"), A))},
    "x'; DROP TABLE messages; --": All((Term("x';"), Term("DROP"), Term("TABLE"), Term("messages;"))),
    **{"naïve": Term("naïve"), "日本": Term("日本")},
}


def test_a_query_is_read_as_it_is_meant(subtests: pytest.Subtests) -> None:
    for text, query in PARSED.items():
        with subtests.test(text=text, query=query):
            assert parse_query(text) == query


@pytest.fixture(scope="module")
def index() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(
            "CREATE VIRTUAL TABLE m USING fts5 (subject, body_md, sender_name, topic, "
            "tokenize = 'unicode61 remove_diacritics 2')"
        )
        connection.execute("INSERT INTO m VALUES ('a b c', 'd AND e', 'Ada', 'x')")
        yield connection


def _finds(index: sqlite3.Connection, text: str) -> bool:
    query = parse_query(text)
    if query is None:
        return False
    return bool(index.execute("SELECT count(*) FROM m WHERE m MATCH ?", (fts5(query),)).fetchone()[0])


PIECES = [
    *"ab()*:-^é';{}+²½ß𞤀\u0345\ue000\t\u2028",
    *("AND", "OR", "NOT", "NEAR", '"', "subject:", "body:(", "x:"),
]
PIECES += ["a*", '"a b"']


@given(
    st.one_of(st.lists(st.sampled_from(PIECES), max_size=60), st.text(max_size=300)),
    st.sampled_from(["", " "]),
)
@settings(max_examples=20)
def test_no_text_is_an_error(index: sqlite3.Connection, pieces: list[str] | str, between: str) -> None:
    _finds(index, between.join(pieces))


@each_row(
    "text",
    [
        *("(" * 1_000, ")" * 1_000, '"' * 1_000, "a" * 1_000, "*" * 1_000, "a:" * 400, "a" + " " * 900 + "b"),
        *("(a OR) b", "(a OR " * 160 + "b" + ")" * 160, "(a b NOT (c OR " * 60, "(a OR b " * 20 + "c"),
        *("(a OR b " * 12 + "c" + " NOT z)" * 12, "(a OR b NOT " * 16, "a " + "NOT b " * 160),
        *(" OR ".join(["a"] * 200), "subject:" * 120 + "a", "body:(" * 160 + "a"),
    ],
)
def test_no_depth_or_length_is_an_error(index: sqlite3.Connection, text: str) -> None:
    _finds(index, text)


async def test_a_message_is_found_by_each_of_its_parts(room: Room) -> None:
    await room.open()
    parts = {"subject": "Harbour crane", "body_md": "It lifts **anchors**.", "topic": "iron/2"}
    sent = await room.send("Ada", "Ben", **parts)
    other = await room.send("Ben", "Ada", subject="Other", body_md="Nothing of it.")
    for query in (
        *("crane", "subject:harbour", "anchors", "lift*", "from:ada", "topic:iron", '"harbour crane"'),
        *("HARBOUR CRANE", "crane anchors", "nobody OR crane"),
    ):
        found = await room.call("search_messages", query=query)
        assert [hit["id"] for hit in found["hits"]] == [sent], query
    for query in (
        *("zebra", "crane zebra", '"crane harbour"', "subject:anchors", "topic:ada", "crane NOT anchors"),
    ):
        assert (await room.call("search_messages", query=query))["hits"] == [], query
    both = await room.call("search_messages", query="it")
    assert [hit["id"] for hit in both["hits"]] == [other, sent]
    assert (await room.call("search_messages", query="it NOT anchors"))["hits"][0]["id"] == other


async def test_pages_of_hits_neither_skip_nor_repeat_and_end(room: Room) -> None:
    await room.open()
    sent = [await room.send("Ada", "Ben", subject=f"word {number}") for number in range(25)]
    for order in ("newest", "best"):
        seen: list[int] = []
        cursor: int | None = 0
        while cursor is not None and len(seen) < 99:
            page = await room.call("search_messages", query="word", order=order, limit=7, cursor=cursor)
            seen += [hit["id"] for hit in page["hits"]]
            cursor = page["next"]
        assert (seen if order == "newest" else sorted(seen, reverse=True)) == sent[::-1]

    async def page_at(cursor: int, **more: Any) -> int:
        found = await room.call("search_messages", query="word", cursor=cursor, limit=30, **more)
        return len(found["hits"])

    assert [await page_at(2**53), await page_at(1), await page_at(2**53, order="best")] == [25, 0, 0]


async def test_a_search_of_nothing_finds_nothing_and_is_no_error(room: Room) -> None:
    await room.open()
    await room.send("Ada", "Ben")
    for query in ("", "   ", '""', "()", "* - !", "(" * 900):
        found = await room.call("search_messages", query=query)
        assert found == {"hits": [], "next": None, "query": query}


@each_row("query", ["AND OR", "a NOT NOT b", '"unclosed', "col:x OR (y", "-a +b", "%_", "a;b'c"])
async def test_malformed_search_text_is_taken_literally(room: Room, query: str) -> None:
    await room.open()
    await room.send("Ada", "Ben", body_md=f"Here it is: {query}")
    found = await room.call("search_messages", query=query)
    assert found["query"] == query
    for order in ("newest", "best"):
        await room.call("search_messages", query=query, order=order)


async def test_a_search_with_bad_arguments_is_refused(room: Room) -> None:
    await room.open()
    for bad in (
        *({"limit": 0}, {"limit": 201}, {"order": "worst"}, {"cursor": -1}, {"query": "x" * 1_001}),
        {"query": 5.5},
    ):
        await room.refused(InvalidArgument, "search_messages", **{"query": "a", **bad})
    await room.refused(InvalidArgument, "search_messages")
    await room.refused(InvalidArgument, "search_messages", query="a\x00b")
    await room.refused(UnknownProject, "search_messages", query="a", project_key="nowhere")
