import re
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.contracts.mail import All, AnyOf, Not, Phrase, Term
from postroom.web import links
from postroom.web.files import picture_type
from postroom.web.reading import _literal_part
from postroom.web.wording import (
    TONES,
    UNKNOWN_TIME,
    absolute,
    every,
    extension,
    folder_name,
    gist,
    initials,
    moment,
    one_line,
    pieces,
    relative,
    size_text,
    tone,
    wanted,
)
from web_samples import HOUR, MINUTE, NOW, picture

DAY = 24 * HOUR
STATIC = resources.files("postroom.web") / "static"
STYLES = {one.name: one.read_text(encoding="utf-8") for one in STATIC.iterdir() if one.name.endswith(".css")}
STYLE = "".join(STYLES.values())


def test_a_time_is_told_from_now(subtests: pytest.Subtests) -> None:
    for distance, words in [
        (0, "just now"),
        (-44_999, "just now"),
        (-45_000, "45 seconds ago"),
        (-MINUTE, "1 minute ago"),
        (-2 * MINUTE + 1, "1 minute ago"),
        (-2 * MINUTE, "2 minutes ago"),
        (-59 * MINUTE, "59 minutes ago"),
        (-HOUR, "1 hour ago"),
        (-23 * HOUR, "23 hours ago"),
        (-DAY, "1 day ago"),
        (-29 * DAY, "29 days ago"),
        (-30 * DAY, "22 Aug 2026"),
        (1, "in a moment"),
        (MINUTE, "in 1 minute"),
        (90 * MINUTE, "in 1 hour"),
        (40 * DAY, "31 Oct 2026"),
        (-NOW, "1 Jan 1970"),
        (-NOW - 1, UNKNOWN_TIME),
        (10**18, UNKNOWN_TIME),
    ]:
        with subtests.test(distance=distance, words=words):
            assert relative(NOW + distance, NOW) == words


def test_a_time_no_calendar_has_is_unknown_and_not_an_error():
    assert (moment(-1), moment(253_402_300_800_000), moment(10**30)) == (None, None, None)
    assert absolute(-1) == UNKNOWN_TIME
    assert absolute(253_402_300_799_999) == "9999-12-31 23:59:59 UTC"
    assert moment(NOW) == "2026-09-21T14:13:20.000Z"


def test_a_size_is_told_in_the_unit_that_fits(subtests: pytest.Subtests) -> None:
    for interval, words in [
        (86_400_000, "every day"),
        (5_400_000, "every 90 minutes"),
        (3_600_000, "every hour"),
        (90_000, "every 90 seconds"),
        (1_500, "every 1500 ms"),
    ]:
        with subtests.test(interval=interval, words=words):
            assert every(interval) == words

    for size, words in [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (10_240, "10 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 40, "3072 GiB"),
    ]:
        with subtests.test(size=size, words=words):
            assert size_text(size) == words


def test_a_name_has_initials(subtests: pytest.Subtests) -> None:
    for name, messages in [
        ("GreenLake", "GL"),
        ("deploy-bot", "DB"),
        ("release.bot_2", "RB"),
        ("bob", "Bo"),
        ("ABC", "AB"),
        ("x9", "X9"),
        ("", "?"),
        ("--", "-"),
        ("日本", "日"),
    ]:
        with subtests.test(name=name, messages=messages):
            assert initials(name) == messages


@given(st.text())
def test_a_name_has_one_of_the_colours_without_regard_to_case(name):
    assert 0 <= tone(name) < TONES
    assert tone("GREENLAKE") == tone("GreenLake")
    assert len(initials(name)) in (1, 2, 3)


def test_a_line_holds_nothing_that_breaks_or_reorders_it(subtests: pytest.Subtests) -> None:
    for text, line in [
        ("a\nb\t c\r\n", "a b c"),
        ("\u202egpj.exe", "gpj.exe"),
        ("a\u2066b\u2069c\u200f", "abc"),
        ("nul\x00\x1b[31m", "nul [31m"),
        ("\ud83d\udc69 👩\u200d💻", "👩\u200d💻"),
        ("می\u200cخواهم", "می\u200cخواهم"),
    ]:
        with subtests.test(text=text, line=line):
            assert one_line(text) == line


def test_the_gist_of_a_body_is_one_plain_line(subtests: pytest.Subtests) -> None:
    for body, line in [
        ("# Title\n\nText *with* **marks** and ~~none~~.", "Title Text with marks and none."),
        ("See [the page](https://a.example/b) and ![chart](c.png).", "See the page and chart."),
        ("Take `src/**/*.py` and snake_case_names.", "Take src/**/*.py and snake_case_names."),
        ("```py\nx = 1\n```\n---\n> - [x] done", "x = 1 done"),
        ("|a|b|\n|--|:-:|\n|1|2|", "a b 1 2"),
        ("", ""),
        ("word " * 60, "word " * 35 + "word…"),
    ]:
        with subtests.test(body=body, line=line):
            assert gist(body) == line


@given(st.text(alphabet="*_~`|[]()!#>-+ \na", max_size=400))
def test_any_body_has_a_gist_of_one_line(body):
    assert "\n" not in gist(body)


def test_a_project_is_called_by_its_folder(subtests: pytest.Subtests) -> None:
    for path, name in [
        ("/home/ana/orchard", "orchard"),
        ("C:\\Users\\ana\\shed\\", "shed"),
        ("/", "/"),
        ("", ""),
    ]:
        with subtests.test(path=path, name=name):
            assert folder_name(path) == name


def test_a_file_name_promises_a_kind(subtests: pytest.Subtests) -> None:
    for name, kind in [
        ("a.PDF", "PDF"),
        ("a.tar.gz", "GZ"),
        ("a", "FILE"),
        ("a.", "FILE"),
        ("a.jsonl", "FILE"),
        ("a.é", "FILE"),
    ]:
        with subtests.test(name=name, kind=kind):
            assert extension(name) == kind


def test_what_was_looked_for_is_marked(subtests: pytest.Subtests) -> None:
    for query, excerpt, marked in [
        (Term("epoch"), "The Epoch, the epochs", ["Epoch"]),
        (Term("migr", prefix=True), "migrate Migration immigrant", ["migrate", "Migration"]),
        (Term("cafe"), "Café cafés CAFE", ["Café", "CAFE"]),
        (Phrase(("disk", "full")), "the disk is full", ["disk", "full"]),
        (Not(Term("a"), Term("b")), "a b", ["a"]),
        (All((Term("a"), AnyOf((Term("b"), Term("c"))))), "a b c d", ["a", "b", "c"]),
        (Term("snake_case"), "snake case", ["snake", "case"]),
        (Term("script"), "<script>alert(1)</script>", ["script", "script"]),
    ]:
        with subtests.test(query=query, excerpt=excerpt, marked=marked):
            cut = pieces(excerpt, wanted(query))
            assert [text for text, hit in cut if hit] == marked
            assert "".join(text for text, _ in cut) == excerpt


def test_addresses_quote_what_they_hold():
    assert links.agent("a b", "x/y?z") == "/p/a%20b/agents/x%2Fy%3Fz"
    assert links.thread("p", "t:1", after=0) == "/p/p/t/t%3A1?after=0"
    assert links.search("p", q='"a&b"', order=None, cursor=5) == "/p/p/search?q=%22a%26b%22&cursor=5"
    assert links.attachment("ff", 3, "ü/\ud800.txt") == "/attachments/ff?message=3&name=%C3%BC%2F%3F.txt"


def test_the_literal_part_of_a_path_ends_before_its_first_wildcard(subtests: pytest.Subtests) -> None:
    for path, prefix in [
        ("src/app", "src/app"),
        ("./src//app/", "src/app"),
        ("src/*.py", "src"),
        ("a\\b", "a/b"),
        ("**", ""),
        ("src/[ab]/c", "src"),
        ("port:80", "port:80"),
    ]:
        with subtests.test(path=path, prefix=prefix):
            assert _literal_part(path) == prefix


def test_the_type_of_a_picture_is_read_off_its_bytes(subtests: pytest.Subtests) -> None:
    for content, kind in [
        (picture(kind="PNG"), "image/png"),
        (picture(kind="JPEG"), "image/jpeg"),
        (picture(kind="GIF"), "image/gif"),
        (picture(kind="WEBP"), "image/webp"),
        (b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", None),
        (b"<html><script>alert(1)</script>", None),
        (b"%PDF-1.7", None),
        (picture(kind="BMP"), None),
        (b"RIFF0000WAVE", None),
        (b"", None),
    ]:
        with subtests.test(content=content, kind=kind):
            assert picture_type(content) == kind


def _palette(text):
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]+);", text))


def _brightness(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = [
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one, other):
    dark, light = sorted((_brightness(one), _brightness(other)))
    return (light + 0.05) / (dark + 0.05)


LIGHT = _palette(STYLE.split("@media", 1)[0])
DARK = LIGHT | _palette(STYLE.split("@media", 2)[1])
TEXT_ON = {
    "ink": ("paper", "sheet", "sunk", "mark"),
    "soft": ("paper", "sheet", "sunk", "blue-wash"),
    "link": ("paper", "sheet", "blue-wash"),
    "on-deep": ("deep",),
    "sheet": ("red",),
    "red": ("red-wash",),
    "amber": ("amber-wash", "sheet"),
    "green": ("green-wash", "sheet"),
}


def test_text_stands_out_from_its_ground_as_wcag_aa_asks(subtests: pytest.Subtests) -> None:
    for palette in [LIGHT, DARK]:
        with subtests.test(palette=palette):
            assert LIGHT["paper"] != DARK["paper"]
            weak = [
                (text, ground)
                for text, grounds in TEXT_ON.items()
                for ground in grounds
                if _contrast(palette[text], palette[ground]) < 4.5
            ]
            assert not weak
            assert min(_contrast(palette["edge"], palette[ground]) for ground in ("paper", "sheet")) >= 3


def test_initials_stand_out_from_each_of_their_colours():
    tones = re.findall(r"\.tone-(\d+) \{ background: (#\w+)", STYLE)
    assert [int(number) for number, _ in tones] == list(range(TONES))
    assert min(_contrast(colour, "#ffffff") for _, colour in tones) >= 4.5


def test_each_style_sheet_is_small_and_fetches_nothing():
    assert {name: len(text.encode()) for name, text in STYLES.items() if len(text.encode()) >= 25_000} == {}
    assert "url(" not in STYLE
    assert "@import" not in STYLE


def test_the_scripts_are_small_and_make_nothing_of_text():
    scripts = [one.read_text(encoding="utf-8") for one in STATIC.iterdir() if one.name.endswith(".js")]
    assert sum(len(text.encode()) for text in scripts) < 20_000
    for text in scripts:
        assert not re.search(
            r"innerHTML *=|outerHTML|insertAdjacent|document\.write|\beval\b|Function\(", text
        )
