"""Attachments and search; each engine has its own index."""

import asyncio

import pytest

from conformance.boxes import Box, on_both
from conformance.promises.given import Office, an_office, file, put_message
from postroom.contracts.errors import InputError, StoreError
from postroom.contracts.mail import All, AnyOf, Not, Phrase, Query, Term
from postroom.stores.mail.store import MailStore

BACKLOG = 1_000
"""More messages than a store settles in one step."""


def blobs(box: Box, *names: str) -> list[bytes | None]:
    return [box.blob(name) for name in names]


def found(box: Box, office: Office, *queries: Query) -> list[list[int]]:
    """Return the ids that each query finds, oldest first."""
    box.settle()
    hits = [box.search(office.project.id, query, order="newest", limit=100) for query in queries]
    return [[hit.message.id for hit in reversed(one)] for one in hits]


def wrong(box: Box, office: Office, expected: dict[Query, list[int]]) -> dict[Query, list[int]]:
    """Return the results of a table of queries that differ from the expected ones."""
    answers = zip(expected.items(), found(box, office, *expected), strict=True)
    return {query: answer for (query, wanted), answer in answers if answer != wanted}


@on_both
def test_bytes_are_stored_once_under_their_hash(box: Box) -> None:
    content = bytes(range(256)) * 1_000
    for name, one in (("one", content), ("one", content), ("empty", b"")):
        box.insert_blob(name, one)
    assert blobs(box, "one", "empty", "none") == [content, b"", None]


@on_both
def test_bytes_that_are_not_stored_cannot_be_attached(box: Box, here: Office) -> None:
    sent = box.put(here.ada, [here.ben]).id
    box.insert_blob("one", b"1")
    for message_id, each in ((sent, file("none")), (sent, file("one", preview="none")), (99, file("one"))):
        with pytest.raises(StoreError):
            box.insert_attachment(message_id, each)
    assert box.attachments([sent]) == {sent: []}


def test_recalling_erases_bytes_that_nobody_else_uses(box: Box, here: Office) -> None:
    names = ("own", "own-preview", "shared", "shared-preview", "loose")
    for name in names:
        box.insert_blob(name, name.encode())
    one, two = (box.put(here.ada, [here.ben]).id for _ in range(2))
    box.insert_attachment(one, file("own", preview="own-preview"))
    box.insert_attachment(one, file("own"))
    box.insert_attachment(one, file("shared", preview="shared-preview"))
    box.insert_attachment(two, file("shared-preview", preview="shared"))
    box.mark_recalled(one, 9)
    assert blobs(box, *names) == [None, None, b"shared", b"shared-preview", b"loose"]
    left = box.attachments([one, two])
    assert (len(left[one]), len(left[two])) == (0, 1)
    box.mark_recalled(two, 9)
    assert blobs(box, *names) == [None, None, None, None, b"loose"]


@pytest.fixture
def library(box: Box, here: Office) -> list[int]:
    """Five messages that searches tell apart."""
    sent = (
        (here.ada, "Café menu", "The soup is ready.", ""),
        (here.ben, "Review", "Please review the menu of soups", ""),
        (here.ada, "ready", "go to main, not main.py", "café"),
        (here.cyd, "STRASSE 12", "Straße; ὌΝΟΜΑ Привет 東京 a2b", ""),
        (here.cyd, "soup menu", "cafe\u0301 \ue000private", ""),
    )
    return [
        box.put(who, [], subject=subject, body=body, topic=topic).id for who, subject, body, topic in sent
    ]


@on_both
def test_words_phrases_fields_and_their_combinations_are_found(
    box: Box, here: Office, library: list[int]
) -> None:
    one, two, three, four, five = library
    menu, soup, ready = Term("menu"), Term("soup"), Term("ready")
    cafes, menus = [one, three, five], [one, two, five]
    whole_words = {
        soup: [one, five],
        Term("soup", prefix=True): [one, two, five],
        ready: [one, three],
        Term("ben"): [two],
        Term("a2"): [],
        Term("a2", prefix=True): [four],
        Term("\ue000private"): [five],
        Term("nothing"): [],
    }
    without_case_and_accents = {Term(word): cafes for word in ("CAFE", "café", "cafe\u0301")} | {
        Term(word): [four] for word in ("straße", "ПРИВЕТ", "東京", "strasse")
    }
    side_by_side = {
        Phrase(("soup", "menu")): [five],
        Phrase(("menu", "soup")): [],
        Phrase(("menu", "The")): [],
        Phrase(("soup", "is", "ready")): [one],
        Phrase(("soup is",)): [one],
        Term("not-main"): [three],
        Term("main.py"): [three],
        Term("main/p", prefix=True): [three],
        Term("menu of so", prefix=True): [two],
    }
    in_a_field = {
        Term("ready", field="subject"): [three],
        Term("ready", field="body"): [one],
        Term("ada", field="sender"): [one, three],
        Term("ada", field="body"): [],
        Term("café", field="topic"): [three],
        Term("so", prefix=True, field="subject"): [five],
        Phrase(("soup", "menu"), field="subject"): [five],
        Phrase(("soup", "menu"), field="body"): [],
        All((Term("menu", field="body"), Term("ben", field="sender"))): [two],
    }
    combined = {
        All((menu, soup)): [one, five],
        All((menu, soup, ready)): [one],
        AnyOf((soup, ready)): [one, three, five],
        Not(menu, soup): [two],
        Not(AnyOf((menu, ready)), All((menu, soup))): [two, three],
        All((AnyOf((Term("strasse"), menu)), Not(Term("cyd"), soup))): [four],
        All((menu,)): menus,
        AnyOf((menu,)): menus,
    }
    signs_are_no_words = {
        **{one: [] for one in (Term(""), Term("?!", prefix=True), Phrase(()), Phrase(("-", "+")), All(()))},
        **{one: [] for one in (AnyOf(()), Term("--", field="body"), All((Term("menu"), Term("..."))))},
        AnyOf((Term("…"), Term("review"))): [two],
        Not(ready, Term("!")): [one, three],
        Not(Term("!"), ready): [],
    }
    for table in (
        whole_words,
        without_case_and_accents,
        side_by_side,
        in_a_field,
        combined,
        signs_are_no_words,
    ):
        assert wrong(box, here, table) == {}


@on_both
def test_scripts_without_spaces_and_symbols_are_found(box: Box, here: Office) -> None:
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
    zh, ja, ko, th, ship, glued, apart, hangul = (
        box.put(here.ada, [], subject="s", body=body).id for body in bodies
    )
    by_word = {
        **{key: [zh] for key in ("数据库", "服务", "务", "数据")},
        **{key: [] for key in ("数库", "✓")},
        **{key: [ko] for key in ("연결", "실패")},
        **{key: [ship] for key in ("🚀", "€", "5€")},
        **{key: [glued] for key in ("gen", "itgc", "跑gen", "itgc后50", "gen-itgc后", "50条")},
        **{"据": [zh, apart], "重": [zh, glued], "データ": [ja], "ข้อมูล": [th], "한글": [hangul]},
    }
    assert wrong(box, here, {Term(word): ids for word, ids in by_word.items()}) == {}
    expected: dict[Query, list[int]] = {
        Term("重启", prefix=True): [zh],
        Phrase(("失败", "请重启")): [zh],
        Phrase(("数", "据")): [apart],
        Term("会議", field="body"): [ja],
        Term("会議", field="subject"): [],
        All((Term("重跑"), Term("gen"))): [glued],
        Not(Term("重"), Term("gen")): [zh],
    }
    assert wrong(box, here, expected) == {}
    [shown] = box.search(here.project.id, Term("重启"), order="best", limit=5)
    assert "重启" in shown.snippet
    box.mark_recalled(zh, 9)
    assert found(box, here, Term("数据库"), Term("重")) == [[], [glued]]


FOLDED: dict[str, tuple[str, ...]] = {
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
"""Texts, and queries that find them; no query finds the text of another row."""


@on_both
def test_a_search_folds_letters_alike_on_both_engines(box: Box, here: Office) -> None:
    expected = {Term("पस्तक"): [], Term("strase"): []}
    for text, queries in FOLDED.items():
        sent = box.put(here.ada, [], subject="s", body=text).id
        expected |= {Term(query): [sent] for query in queries}
    assert wrong(box, here, expected) == {}


@on_both
def test_a_long_text_without_spaces_is_searched_in_part_and_the_search_says_so(
    box: Box, here: Office
) -> None:
    pairs = "".join(chr(0x4E00 + number % 20_000) for number in range(0, 60_000, 3))
    body = f"{pairs[:15_990]}开始了 {pairs} 结束了 behind"
    long, short = (box.put(here.ada, [], subject="s", body=text).id for text in (body, "结束了"))
    assert wrong(box, here, {Term("开始"): [long], Term("结束"): [short], Term("behind"): [long]}) == {}

    def partly(word: str) -> list[int]:
        return box.partly_searched(here.project.id, Term(word), limit=9)

    assert partly("结束") == partly("束") == [long]
    assert partly("behind") == partly("🚀") == []
    box.mark_recalled(long, 9)
    assert partly("结束") == []


@on_both
def test_a_search_takes_every_word_literally(box: Box, here: Office) -> None:
    text = "a\" OR NEAR(b c, 2) AND {subject}: d* ^e NOT -f (g) 'h' ; DROP %i_ \\j"
    sent = box.put(here.ada, [], body=text).id
    words = ["OR", "NEAR", "AND", "NOT", 'a"', "d*", "^e", "(g)", "{subject}", "a\0", text, "a\0 or near"]
    assert wrong(box, here, {Term(word): [sent] for word in words} | {Phrase((text,)): [sent]}) == {}
    assert wrong(box, here, {Term(word): [] for word in ("\0", '"', "*", "body_md:")}) == {}


@on_both
def test_a_search_that_nests_too_deeply_is_refused(box: Box, here: Office) -> None:
    sent = box.put(here.ada, [], body="one two").id
    query: Query = Term("one", field="body")
    for level in range(30):
        query = (AnyOf if level % 2 else All)((Phrase(("one", "two"), field="body"), query))
    assert found(box, here, query) == [[sent]]
    for _ in range(300):
        query = Not(query, Term("three"))
    with pytest.raises(InputError):
        found(box, here, query)


@on_both
def test_a_search_finds_neither_other_projects_nor_what_was_recalled(
    box: Box, here: Office, there: Office
) -> None:
    def send_and_recall(tx) -> None:
        tx.mark_recalled(put_message(tx, here.ada, [], body="pear").id, 9)

    box.put(there.ada, [], body="plum")
    kept, recalled = (box.put(here.ada, [], subject="plum", body="pear", topic="fig").id for _ in range(2))
    box.change(send_and_recall)
    box.mark_recalled(box.put(here.ada, [], body="pear").id, 9)  # before anything was settled
    words = [Term("plum"), Term("pear"), Term("fig"), Term("ada")]
    assert found(box, here, *words) == [[kept, recalled]] * 4
    box.mark_recalled(recalled, 9)
    assert found(box, here, *words) == [[kept]] * 4


async def test_settling_brings_a_search_up_to_every_message(mail_store: MailStore) -> None:
    here = await an_office(mail_store)
    await mail_store.settle()
    sent = await mail_store.write(
        lambda tx: [put_message(tx, here.ada, [], body="plum").id for _ in range(BACKLOG)]
    )
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(mail_store.settle())
    most = 2 * BACKLOG
    hits = await mail_store.read(
        lambda tx: tx.search(here.project.id, Term("plum"), order="newest", limit=most)
    )
    assert [hit.message.id for hit in reversed(hits)] == sent
    await mail_store.settle()
    heads = await mail_store.read(lambda tx: tx.threads(here.project.id, limit=most))
    assert [head.last_id for head in reversed(heads)] == sent


@on_both
def test_the_newest_hits_are_paged_by_id(box: Box, here: Office) -> None:
    sent = [box.put(here.ada, [], body="plum").id for _ in range(5)]

    def page(cursor: int = 0) -> list[int]:
        box.settle()
        hits = box.search(here.project.id, Term("plum"), order="newest", limit=2, cursor=cursor)
        return [hit.message.id for hit in hits]

    assert page() == [sent[4], sent[3]]
    box.put(here.ada, [], body="plum")
    assert page(sent[3]) == [sent[2], sent[1]]
    assert page(sent[1]) == [sent[0]]
    assert page(sent[0]) == []


@on_both
def test_the_best_hits_come_first_and_equally_good_ones_newest_first(box: Box, here: Office) -> None:
    filler = "of all the words that stand here only few are the one that is looked for " * 3
    bodies = [f"plum {filler}", filler, "plum plum plum", f"plum {filler}", "nothing", "at all"]
    early, _, best, late, *_ = (box.put(here.ada, [], body=body).id for body in bodies)
    box.settle()
    hits = box.search(here.project.id, Term("plum"), order="best", limit=9)
    assert [hit.message.id for hit in hits] == [best, late, early]
    ranks = [hit.rank for hit in hits]
    assert ranks == sorted(ranks)
    assert max(ranks) < 0
    [second] = box.search(here.project.id, Term("plum"), order="best", limit=1, cursor=1)
    assert second.message.id == late


@on_both
def test_a_hit_shows_the_message_and_the_place(box: Box, here: Office) -> None:
    body = "word " * 200 + "Plum & <b>pear</b> " + "word " * 200
    sent = box.put(here.ada, [], subject="s", body=body)
    box.settle()
    for order in ("newest", "best"):
        [hit] = box.search(here.project.id, Term("pear"), order=order, limit=9)
        assert hit.message == sent
        assert "<b>pear</b>" in hit.snippet
        assert len(hit.snippet) < len(body) / 4
