"""Searches of a project among others on SQLite, whose index holds all of them."""

from collections.abc import Iterator

import pytest

from postroom.mail.query import parse_query
from postroom.stores.mail import search_index
from postroom.stores.sqlite import SqliteStore
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
