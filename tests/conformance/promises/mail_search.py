"""Promises of a mail store about attachments and search."""

import asyncio
from collections.abc import Callable

from conformance.promises.given import Office, an_office, file, put_message, refused
from postroom.contracts.choices import SearchOrder
from postroom.contracts.errors import InputError, StoreError
from postroom.contracts.mail import All, AnyOf, Message, Not, Phrase, Query, Term
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.mail.store import MailStore
from postroom.testing.clock import ManualClock


async def _blobs(store: MailStore, *names: str) -> list[bytes | None]:
    return await store.read(lambda tx: [tx.blob(name) for name in names])


BACKLOG = 1_000
"""More messages than a store settles in one step."""


async def bytes_are_stored_once_under_their_hash(store: MailStore, clock: ManualClock) -> None:
    """Any bytes read back; storing them again is harmless; a hash nobody stored finds nothing."""
    content = bytes(range(256)) * 1_000
    await store.write(lambda tx: tx.insert_blob("one", content))
    await store.write(lambda tx: tx.insert_blob("one", content))
    await store.write(lambda tx: tx.insert_blob("empty", b""))
    assert await _blobs(store, "one", "empty", "none") == [content, b"", None]


async def attachments_come_in_the_order_of_attaching(store: MailStore, clock: ManualClock) -> None:
    """Each message has its own list, in which the same bytes may stand twice."""
    here = await an_office(store)
    files = [file("two", preview="one", name="b"), file("one", name="å.txt"), file("two", name="c")]

    def send(tx: MailWrites) -> list[int]:
        tx.insert_blob("one", b"1")
        tx.insert_blob("two", b"2")
        messages = [put_message(tx, here.ada, [here.ben]) for _ in range(3)]
        for each in files:
            tx.insert_attachment(messages[0].id, each)
        tx.insert_attachment(messages[1].id, files[1])
        return [message.id for message in messages]

    ids = await store.write(send)
    found = await store.read(lambda tx: tx.attachments(ids))
    assert found == {ids[0]: files, ids[1]: files[1:2], ids[2]: []}


async def bytes_that_are_not_stored_cannot_be_attached(store: MailStore, clock: ManualClock) -> None:
    """Neither as a file nor as its preview, nor to a message nobody sent."""
    here = await an_office(store)
    sent = await store.write(lambda tx: put_message(tx, here.ada, [here.ben]))
    await store.write(lambda tx: tx.insert_blob("one", b"1"))
    with refused(StoreError):
        await store.write(lambda tx: tx.insert_attachment(sent.id, file("none")))
    with refused(StoreError):
        await store.write(lambda tx: tx.insert_attachment(sent.id, file("one", preview="none")))
    with refused(StoreError):
        await store.write(lambda tx: tx.insert_attachment(99, file("one")))
    assert await store.read(lambda tx: tx.attachments([sent.id])) == {sent.id: []}


async def recalling_erases_bytes_that_nobody_else_uses(store: MailStore, clock: ManualClock) -> None:
    """Files and previews go with the message, except those that another message holds in either role."""
    here = await an_office(store)

    def send(tx: MailWrites) -> tuple[int, int]:
        for name in ("own", "own-preview", "shared", "shared-preview", "loose"):
            tx.insert_blob(name, name.encode())
        one, two = (put_message(tx, here.ada, [here.ben]).id for _ in range(2))
        tx.insert_attachment(one, file("own", preview="own-preview"))
        tx.insert_attachment(one, file("own"))
        tx.insert_attachment(one, file("shared", preview="shared-preview"))
        tx.insert_attachment(two, file("shared-preview", preview="shared"))
        return one, two

    one, two = await store.write(send)
    await store.write(lambda tx: tx.mark_recalled(one, clock.now()))
    assert await _blobs(store, "own", "own-preview") == [None, None]
    assert await _blobs(store, "shared", "shared-preview", "loose") == [
        b"shared",
        b"shared-preview",
        b"loose",
    ]
    found = await store.read(lambda tx: tx.attachments([one, two]))
    assert (len(found[one]), len(found[two])) == (0, 1)
    await store.write(lambda tx: tx.mark_recalled(two, clock.now()))
    assert await _blobs(store, "shared", "shared-preview", "loose") == [None, None, b"loose"]


async def _found(store: MailStore, project_id: int, *queries: Query) -> list[list[int]]:
    """Return the ids that each query finds, oldest first."""

    def look(tx: MailReads) -> list[list[int]]:
        hits = [tx.search(project_id, query, order="newest", limit=100) for query in queries]
        return [[hit.message.id for hit in reversed(found)] for found in hits]

    await store.settle()
    return await store.read(look)


async def a_library(store: MailStore) -> tuple[Office, list[int]]:
    """Send five messages that searches tell apart."""
    here = await an_office(store)

    def send(tx: MailWrites) -> list[int]:
        sent = [
            put_message(tx, here.ada, [], subject="Café menu", body="The soup is ready."),
            put_message(tx, here.ben, [], subject="Review", body="Please review the menu of soups"),
            put_message(tx, here.ada, [], subject="ready", body="go to main, not main.py", topic="café"),
            put_message(tx, here.cyd, [], subject="STRASSE 12", body="Straße; ὌΝΟΜΑ Привет 東京 a2b"),
            put_message(tx, here.cyd, [], subject="soup menu", body="cafe\u0301 \ue000private"),
        ]
        return [message.id for message in sent]

    return here, await store.write(send)


async def scripts_without_spaces_and_symbols_are_found(store: MailStore, clock: ManualClock) -> None:
    """Each part of a run of such a script is found, also beside Latin text; a symbol is a word."""
    here = await an_office(store)
    bodies = (
        "数据库连接失败，请重启服务",
        "会議は明日の午後です ﾃﾞｰﾀ",
        "데이터베이스 연결이 실패했습니다",
        "ฐานข้อมูลล้มเหลว",
        "ship it 🚀 for 5€, 5°C",
        "重跑gen-itgc后50条",
        "数 据",
        "한글",  # in single parts, as macOS writes names of files
    )

    def send(tx: MailWrites) -> list[int]:
        return [put_message(tx, here.ada, [], subject="s", body=body).id for body in bodies]

    zh, ja, ko, th, ship, glued, apart, hangul = await store.write(send)
    expected: dict[Query, list[int]] = {
        Term("数据库"): [zh],
        Term("据"): [zh, apart],
        Term("服务"): [zh],
        Term("务"): [zh],
        Term("数据"): [zh],
        Term("数库"): [],
        Term("重启", prefix=True): [zh],
        Term("重"): [zh, glued],
        Phrase(("失败", "请重启")): [zh],
        Phrase(("数", "据")): [apart],
        Term("会議", field="body"): [ja],
        Term("会議", field="subject"): [],
        Term("データ"): [ja],
        Term("연결"): [ko],
        Term("실패"): [ko],
        Term("ข้อมูล"): [th],
        Term("🚀"): [ship],
        Term("€"): [ship],
        Term("5€"): [ship],
        Term("✓"): [],
        Term("gen"): [glued],
        Term("itgc"): [glued],
        Term("跑gen"): [glued],
        Term("itgc后50"): [glued],
        Term("gen-itgc后"): [glued],
        Term("50条"): [glued],
        Term("한글"): [hangul],
        All((Term("重跑"), Term("gen"))): [glued],
        Not(Term("重"), Term("gen")): [zh],
    }
    found = await _found(store, here.project.id, *expected)
    assert dict(zip(expected, found, strict=True)) == expected
    shown = await store.read(lambda tx: tx.search(here.project.id, Term("重启"), order="best", limit=5))
    assert "重启" in shown[0].snippet
    await store.write(lambda tx: tx.mark_recalled(zh, clock.now()))
    assert await _found(store, here.project.id, Term("数据库"), Term("重")) == [[], [glued]]


async def a_search_finds_whole_words(store: MailStore, clock: ManualClock) -> None:
    """A word is found in every field, not as a part of another; with a prefix also longer words are."""
    here, (one, two, three, four, five) = await a_library(store)
    found = await _found(
        store,
        here.project.id,
        Term("soup"),
        Term("soup", prefix=True),
        Term("ready"),
        Term("ben"),
        Term("a2"),
        Term("a2", prefix=True),
        Term("\ue000private"),
        Term("nothing"),
    )
    assert found == [[one, five], [one, two, five], [one, three], [two], [], [four], [five], []]


async def a_search_ignores_case_and_accents(store: MailStore, clock: ManualClock) -> None:
    """Latin letters are found with or without their accents, however these are encoded."""
    here, (one, _, three, four, five) = await a_library(store)
    found = await _found(
        store,
        here.project.id,
        Term("CAFE"),
        Term("café"),
        Term("cafe\u0301"),
        Term("straße"),
        Term("ПРИВЕТ"),
        Term("東京"),
        Term("strasse"),
    )
    cafes = [one, three, five]
    assert found == [cafes, cafes, cafes, [four], [four], [four], [four]]


_FOLDED: dict[str, tuple[str, ...]] = {
    "smørrebrød": ("smorrebrod", "SMØRREBRØD", "smørrebrod"),
    "Łódź": ("lodz", "łódź", "ŁÓDŹ"),
    "Straße": ("strasse", "STRASSE", "straße"),
    "Diyarbakır İZMİR": ("diyarbakir", "DİYARBAKIR", "izmir", "İzmir", "İZMİR"),
    "encyclopædia œuvre": ("encyclopaedia", "oeuvre", "ŒUVRE"),
    "Þór Đorđe": ("thor", "dorde", "ÞÓR"),
    "ＦＵＬＬ ｗｉｄｔｈ ９": ("full", "width", "9"),
    "ﬁnal": ("final", "ﬁnal"),
    "مَرْحَبًا": ("مرحبا", "مرحبًا", "مـرحبا"),
    "שָׁלוֹם": ("שלום", "שָׁלוֹם"),
    "غرفة ٣٤": ("غرفة", "34", "٣٤"),
    "Ёлка": ("елка", "ЁЛКА", "ёлка"),
    "Αθήνα": ("αθηνα", "ΑΘΉΝΑ"),
    "पुस्तक": ("पुस्तक",),
    "nai\u0308ve na\u00efve": ("naive", "naïve", "nai\u0308ve"),
    "co\u00adop\u200ded": ("cooped",),
    "ǡ Ǆ ᾳ": ("a", "dz", "αι"),
    "ﾊﾞﾅﾅ": ("バナナ",),
}
"""Texts, and queries that find them; no text is found by a query of another one."""


async def a_search_folds_letters_alike_on_both_engines(store: MailStore, clock: ManualClock) -> None:
    """Whether a text is found does not depend on the engine, nor on who typed it on which keyboard."""
    here = await an_office(store)
    sent = {
        text: await store.write(
            lambda tx, text=text: put_message(tx, here.ada, [], subject="s", body=text).id
        )
        for text in _FOLDED
    }
    for text, queries in _FOLDED.items():
        found = await _found(store, here.project.id, *map(Term, queries))
        assert found == [[sent[text]]] * len(queries), (text, queries)
    assert await _found(store, here.project.id, Term("पस्तक"), Term("strase")) == [[], []]


async def a_long_text_without_spaces_is_searched_in_part_and_the_search_says_so(
    store: MailStore, clock: ManualClock
) -> None:
    """The first 16,000 characters and words with spaces are found; a search for more names the message."""
    here = await an_office(store)
    pairs = "".join(chr(0x4E00 + number % 20_000) for number in range(0, 60_000, 3))
    long = await store.write(
        lambda tx: (
            put_message(
                tx, here.ada, [], subject="s", body=f"{pairs[:15_990]}开始了 {pairs} 结束了 behind"
            ).id
        )
    )
    short = await store.write(lambda tx: put_message(tx, here.ada, [], subject="s", body="结束了").id)
    assert await _found(store, here.project.id, Term("开始"), Term("结束"), Term("behind")) == [
        [long],
        [short],
        [long],
    ]

    def partly(query: Query) -> Callable[[MailReads], list[int]]:
        return lambda tx: tx.partly_searched(here.project.id, query, limit=9)

    for query, expected in {
        Term("结束"): [long],
        Term("束"): [long],
        Term("behind"): [],
        Term("🚀"): [],
    }.items():
        assert await store.read(partly(query)) == expected
    await store.write(lambda tx: tx.mark_recalled(long, clock.now()))
    assert await store.read(partly(Term("结束"))) == []


async def a_phrase_is_words_side_by_side(store: MailStore, clock: ManualClock) -> None:
    """In this order, nothing between them, in one field; whatever separates them in the text or the query."""
    here, (one, two, three, _, five) = await a_library(store)
    found = await _found(
        store,
        here.project.id,
        Phrase(("soup", "menu")),
        Phrase(("menu", "soup")),
        Phrase(("menu", "The")),
        Phrase(("soup", "is", "ready")),
        Phrase(("soup is",)),
        Term("not-main"),
        Term("main.py"),
        Term("main/p", prefix=True),
        Term("menu of so", prefix=True),
    )
    assert found == [[five], [], [], [one], [one], [three], [three], [three], [two]]


async def a_field_narrows_a_search(store: MailStore, clock: ManualClock) -> None:
    """Words and phrases are looked for in the named field alone."""
    here, (one, two, three, _, five) = await a_library(store)
    found = await _found(
        store,
        here.project.id,
        Term("ready", field="subject"),
        Term("ready", field="body"),
        Term("ada", field="sender"),
        Term("ada", field="body"),
        Term("café", field="topic"),
        Term("so", prefix=True, field="subject"),
        Phrase(("soup", "menu"), field="subject"),
        Phrase(("soup", "menu"), field="body"),
        All((Term("menu", field="body"), Term("ben", field="sender"))),
    )
    assert found == [[three], [one], [one, three], [], [three], [five], [five], [], [two]]


async def searches_are_combined(store: MailStore, clock: ManualClock) -> None:
    """AND looks across the fields of a message, OR takes either, NOT takes away, and they nest."""
    here, (one, two, three, four, five) = await a_library(store)
    menu, soup, ready = Term("menu"), Term("soup"), Term("ready")
    found = await _found(
        store,
        here.project.id,
        All((menu, soup)),
        All((menu, soup, ready)),
        AnyOf((soup, ready)),
        Not(menu, soup),
        Not(AnyOf((menu, ready)), All((menu, soup))),
        All((AnyOf((Term("strasse"), menu)), Not(Term("cyd"), soup))),
        All((menu,)),
        AnyOf((menu,)),
    )
    menus = [one, two, five]
    assert found == [[one, five], [one], [one, three, five], [two], [two, three], [four], menus, menus]


async def a_search_without_words_finds_nothing(store: MailStore, clock: ManualClock) -> None:
    """Signs separate words and are none; among others they take nothing away and add nothing."""
    here, (one, two, three, *_) = await a_library(store)
    nothing: list[Query] = [Term(""), Term("?!", prefix=True), Phrase(()), Phrase(("-", "+"))]
    nothing += [All(()), AnyOf(()), Term("--", field="body"), All((Term("menu"), Term("...")))]
    assert await _found(store, here.project.id, *nothing) == [[]] * len(nothing)
    assert await _found(store, here.project.id, AnyOf((Term("…"), Term("review")))) == [[two]]
    assert await _found(store, here.project.id, Not(Term("ready"), Term("!"))) == [[one, three]]
    assert await _found(store, here.project.id, Not(Term("!"), Term("ready"))) == [[]]


async def a_search_takes_every_word_literally(store: MailStore, clock: ManualClock) -> None:
    """Nothing in a word is an operator of the store, and nothing makes it fail."""
    here = await an_office(store)
    text = "a\" OR NEAR(b c, 2) AND {subject}: d* ^e NOT -f (g) 'h' ; DROP %i_ \\j"
    sent = await store.write(lambda tx: put_message(tx, here.ada, [], body=text).id)
    words = [
        "OR",
        "NEAR",
        "AND",
        "NOT",
        'a"',
        "d*",
        "^e",
        "(g)",
        "{subject}",
        "a\0",
        "\0",
        '"',
        "*",
        "body_md:",
    ]
    found = await _found(store, here.project.id, *(Term(word) for word in words), Term(text), Phrase((text,)))
    assert found == [[sent]] * 10 + [[]] * 4 + [[sent]] * 2
    assert await _found(store, here.project.id, Term("a\0 or near")) == [[sent]]


async def a_search_that_nests_too_deeply_is_refused(store: MailStore, clock: ManualClock) -> None:
    """Thirty levels are answered; many more are the caller's mistake, and no failure of the store."""
    here = await an_office(store)
    sent = await store.write(lambda tx: put_message(tx, here.ada, [], body="one two").id)
    query: Query = Term("one", field="body")
    for level in range(30):
        query = (AnyOf if level % 2 else All)((Phrase(("one", "two"), field="body"), query))
    assert await _found(store, here.project.id, query) == [[sent]]
    for _ in range(300):
        query = Not(query, Term("three"))
    with refused(InputError):
        await _found(store, here.project.id, query)


async def a_search_stays_in_its_project(store: MailStore, clock: ManualClock) -> None:
    """What other projects wrote is not found, nor what was recalled, by any of its words."""
    here, there = await an_office(store), await an_office(store, "elsewhere")

    def send(tx: MailWrites) -> list[int]:
        put_message(tx, there.ada, [], body="plum")
        return [put_message(tx, here.ada, [], subject="plum", body="pear", topic="fig").id for _ in range(2)]

    kept, recalled = await store.write(send)
    words = [Term("plum"), Term("pear"), Term("fig"), Term("ada")]
    assert await _found(store, here.project.id, *words) == [[kept, recalled]] * 4
    await store.write(lambda tx: tx.mark_recalled(recalled, clock.now()))
    assert await _found(store, here.project.id, *words) == [[kept]] * 4


async def settling_brings_a_search_up_to_every_message(store: MailStore, clock: ManualClock) -> None:
    """Many messages or none, again or at once with others: what was written before is found afterwards."""
    here = await an_office(store)
    await store.settle()
    sent = await store.write(
        lambda tx: [put_message(tx, here.ada, [], body="plum").id for _ in range(BACKLOG)]
    )
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(store.settle())
    hits = await store.read(
        lambda tx: tx.search(here.project.id, Term("plum"), order="newest", limit=2 * BACKLOG)
    )
    assert [hit.message.id for hit in reversed(hits)] == sent
    await store.settle()
    heads = await store.read(lambda tx: tx.threads(here.project.id, limit=2 * BACKLOG))
    assert [head.last_id for head in reversed(heads)] == sent


async def a_message_recalled_at_once_is_never_found(store: MailStore, clock: ManualClock) -> None:
    """Also when nothing was settled between sending and recalling; later messages are found all the same."""
    here = await an_office(store)

    def send_and_recall(tx: MailWrites) -> None:
        tx.mark_recalled(put_message(tx, here.ada, [], body="plum").id, clock.now())

    await store.write(send_and_recall)
    recalled = await store.write(lambda tx: put_message(tx, here.ada, [], body="plum").id)
    await store.write(lambda tx: tx.mark_recalled(recalled, clock.now()))
    kept = await store.write(lambda tx: put_message(tx, here.ada, [], body="plum").id)
    assert await _found(store, here.project.id, Term("plum")) == [[kept]]


async def the_newest_hits_are_paged_by_id(store: MailStore, clock: ManualClock) -> None:
    """The cursor is the last id seen; pages join without a gap, also when new messages arrive between."""
    here = await an_office(store)
    sent = await store.write(lambda tx: [put_message(tx, here.ada, [], body="plum").id for _ in range(5)])

    async def page(*, limit: int, cursor: int = 0) -> list[int]:
        await store.settle()
        hits = await store.read(
            lambda tx: tx.search(here.project.id, Term("plum"), order="newest", limit=limit, cursor=cursor)
        )
        return [hit.message.id for hit in hits]

    assert await page(limit=2) == [sent[4], sent[3]]
    await store.write(lambda tx: put_message(tx, here.ada, [], body="plum"))
    assert await page(limit=2, cursor=sent[3]) == [sent[2], sent[1]]
    assert await page(limit=2, cursor=sent[1]) == [sent[0]]
    assert await page(limit=2, cursor=sent[0]) == []


async def the_best_hits_come_first(store: MailStore, clock: ManualClock) -> None:
    """The smaller the rank the better; equally good ones come newest first; the cursor leaves out so many."""
    here = await an_office(store)
    filler = "of all the words that stand here only few are the one that is looked for " * 3

    def send(tx: MailWrites) -> list[int]:
        bodies = [f"plum {filler}", filler, "plum plum plum", f"plum {filler}", "nothing", "at all"]
        return [put_message(tx, here.ada, [], body=body).id for body in bodies]

    early, _, best, late, *_ = await store.write(send)
    await store.settle()
    hits = await store.read(lambda tx: tx.search(here.project.id, Term("plum"), order="best", limit=9))
    assert [hit.message.id for hit in hits] == [best, late, early]
    assert [hit.rank for hit in hits] == sorted(hit.rank for hit in hits)
    assert all(hit.rank < 0 for hit in hits)
    rest = await store.read(
        lambda tx: tx.search(here.project.id, Term("plum"), order="best", limit=1, cursor=1)
    )
    assert [hit.message.id for hit in rest] == [late]


async def a_hit_shows_the_message_and_the_place(store: MailStore, clock: ManualClock) -> None:
    """The snippet holds the word that was found, not the whole of a long text, and no markup."""
    here = await an_office(store)
    body = "word " * 200 + "Plum & <b>pear</b> " + "word " * 200

    def send(tx: MailWrites) -> Message:
        return put_message(tx, here.ada, [], subject="s", body=body)

    sent = await store.write(send)
    await store.settle()
    orders: list[SearchOrder] = ["newest", "best"]
    found = await store.read(
        lambda tx: [tx.search(here.project.id, Term("pear"), order=order, limit=9) for order in orders]
    )
    for hits in found:
        assert [hit.message for hit in hits] == [sent]
        assert "<b>pear</b>" in hits[0].snippet
        assert len(hits[0].snippet) < len(body) / 4


PROMISES = (
    bytes_are_stored_once_under_their_hash,
    attachments_come_in_the_order_of_attaching,
    bytes_that_are_not_stored_cannot_be_attached,
    recalling_erases_bytes_that_nobody_else_uses,
    scripts_without_spaces_and_symbols_are_found,
    a_search_finds_whole_words,
    a_search_ignores_case_and_accents,
    a_search_folds_letters_alike_on_both_engines,
    a_long_text_without_spaces_is_searched_in_part_and_the_search_says_so,
    a_phrase_is_words_side_by_side,
    a_field_narrows_a_search,
    searches_are_combined,
    a_search_without_words_finds_nothing,
    a_search_takes_every_word_literally,
    a_search_that_nests_too_deeply_is_refused,
    a_search_stays_in_its_project,
    settling_brings_a_search_up_to_every_message,
    a_message_recalled_at_once_is_never_found,
    the_newest_hits_are_paged_by_id,
    the_best_hits_come_first,
    a_hit_shows_the_message_and_the_place,
)
