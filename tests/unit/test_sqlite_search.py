"""Searches of a project among others on SQLite, whose index holds all of them."""

from collections.abc import Iterator

import pytest

from postroom.mail.query import parse_query
from postroom.stores.mail import search_index
from postroom.stores.mail.search_index import MAX_UNSPACED, folded, indexed_text
from postroom.stores.sqlite import SqliteStore
from postroom.stores.sqlite.engine import STEP_CHARACTERS, update_indexes
from web_samples import Writer


@pytest.fixture
def store(tmp_path) -> Iterator[SqliteStore]:
    made = SqliteStore.open(tmp_path / "postroom.db")
    yield made
    made.close()


@pytest.mark.parametrize("few", [search_index.FEW, 0])
@pytest.mark.parametrize("order", ["newest", "best"])
async def test_a_search_finds_the_same_in_a_project_with_few_messages_and_in_one_with_many(
    store, monkeypatch, few, order
):
    monkeypatch.setattr(search_index, "FEW", few)

    def fill(tx) -> dict[str, list[int]]:
        write, written = Writer(tx), {"lake": [], "orchard": []}
        for slug in written:
            write.agent(write.project(slug, f"/{slug}"), "Ada", "")
        for number in range(40):  # in turns, so that no project has a range of ids of its own
            slug = ("lake", "orchard")[number % 2]
            ada = tx.agent(tx.project(slug).id, "Ada")
            words = "common fish" if number % 3 == 0 else "common"
            written[slug].append(write.send(ada, "A report", words, to=(ada,)).id)
        return written

    written = await store.write(fill)
    await store.settle()
    for slug, ids in written.items():
        for asked, expected in (("common", ids), ("fish", [one for one in ids if (one - 1) % 3 == 0])):
            found = await store.read(
                lambda reads, slug=slug, asked=asked: reads.search(
                    reads.project(slug).id, parse_query(asked), order=order, limit=50
                )
            )
            assert sorted(hit.message.id for hit in found) == expected


@pytest.mark.parametrize("order", ["newest", "best"])
async def test_a_search_looks_at_no_message_that_is_behind_those_of_its_project(store, order):
    """Later writes of others cost nothing: the index is scanned between a project's first and last message."""

    def fill(tx, slug: str, count: int) -> None:
        write = Writer(tx)
        write.agent(write.project(slug, f"/{slug}"), "Ada", "")
        ada = tx.agent(tx.project(slug).id, "Ada")
        for _ in range(count):
            write.send(ada, "A report", "common", to=(ada,))

    def steps(reads) -> int:
        counted, connection = [], reads._tx.connection
        connection.set_progress_handler(lambda: counted.append(1), 10)
        try:
            assert reads.search(reads.project("lake").id, parse_query("common"), order=order, limit=5)
        finally:
            connection.set_progress_handler(None, 0)
        return len(counted)

    taken = []
    for slug, count in (("lake", 10), ("orchard", 1_000)):
        await store.write(lambda tx, slug=slug, count=count: fill(tx, slug, count))
        await store.settle()
        taken.append(await store.read(steps))
    assert taken[1] < taken[0] * 2


async def test_a_step_of_the_index_takes_few_large_messages(store):
    """Callers wait during a step."""

    def fill(tx) -> list[bool]:
        write = Writer(tx)
        ada = write.agent(write.project("lake", "/lake"), "Ada", "")
        for _ in range(4):
            write.send(ada, "A report", "fish " * (STEP_CHARACTERS // 6), to=(ada,))
        return [update_indexes(tx._tx) for _ in range(3)]

    assert await store.write(fill) == [True, False, False]


def test_a_text_without_spaces_makes_a_bounded_number_of_words():
    """Each pair of characters of random text is another word: a megabyte of them took seconds."""
    text = "".join(chr(0x4E00 + number * 7_919 % 20_000) for number in range(340_000))
    assert len(folded(text)) == len(set(folded(text))) == MAX_UNSPACED
    assert len(indexed_text(text)) < 400_000
