import re
from collections.abc import Callable
from importlib import resources
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from postroom.contracts.clock import every
from postroom.contracts.mail import All, AnyOf, Not, Phrase, Term
from postroom.web import links
from postroom.web.files import picture_type
from postroom.web.reservations import _literal_part
from postroom.web.wording import (
    TONES,
    UNKNOWN_TIME,
    absolute,
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
from table_rows import each_row
from web_samples import HOUR, MINUTE, NOW, picture

DAY = 24 * HOUR
STATIC = resources.files("postroom.web") / "static"
STYLES = {one.name: one.read_text(encoding="utf-8") for one in STATIC.iterdir() if one.name.endswith(".css")}
STYLE = "".join(STYLES.values())


def ago(distance: int) -> str:
    return relative(NOW + distance, NOW)


TOLD: dict[Callable[[Any], object], dict[Any, object]] = {
    ago: {
        **{0: "just now", -44_999: "just now", -45_000: "45 seconds ago", -MINUTE: "1 minute ago"},
        **{-2 * MINUTE + 1: "1 minute ago", -2 * MINUTE: "2 minutes ago", -59 * MINUTE: "59 minutes ago"},
        **{-HOUR: "1 hour ago", -23 * HOUR: "23 hours ago", -DAY: "1 day ago", -29 * DAY: "29 days ago"},
        **{-30 * DAY: "22 Aug 2026", 1: "in a moment", MINUTE: "in 1 minute", 90 * MINUTE: "in 1 hour"},
        **{40 * DAY: "31 Oct 2026", -NOW: "1 Jan 1970", -NOW - 1: UNKNOWN_TIME, 10**18: UNKNOWN_TIME},
    },
    every: {
        **{86_400_000: "every day", 5_400_000: "every 90 minutes", 3_600_000: "every hour"},
        **{90_000: "every 90 seconds", 1_500: "every 1500 ms"},
    },
    size_text: {
        **{
            **{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 10_240: "10 KiB", 5 << 20: "5.0 MiB"},
            3 << 40: "3072 GiB",
        }
    },
    initials: {
        **{
            **{"GreenLake": "GL", "deploy-bot": "DB", "release.bot_2": "RB", "bob": "Bo", "ABC": "AB"},
            "x9": "X9",
        },
        **{"": "?", "--": "-", "日本": "日"},
    },
    one_line: {
        **{"a\nb\t c\r\n": "a b c", "\u202egpj.exe": "gpj.exe", "a\u2066b\u2069c\u200f": "abc"},
        **{"nul\x00\x1b[31m": "nul [31m", "\ud83d\udc69 👩\u200d💻": "👩\u200d💻"},
        **{"می\u200cخواهم": "می\u200cخواهم"},
    },
    gist: {
        "# Title\n\nText *with* **marks** and ~~none~~.": "Title Text with marks and none.",
        "See [the page](https://a.example/b) and ![chart](c.png).": "See the page and chart.",
        "Take `src/**/*.py` and snake_case_names.": "Take src/**/*.py and snake_case_names.",
        "```py\nx = 1\n```\n---\n> - [x] done": "x = 1 done",
        "|a|b|\n|--|:-:|\n|1|2|": "a b 1 2",
        "": "",
        "word " * 60: "word " * 35 + "word…",
    },
    folder_name: {"/home/ana/orchard": "orchard", "C:\\Users\\ana\\shed\\": "shed", "/": "/", "": ""},
    extension: {"a.PDF": "PDF", "a.tar.gz": "GZ", **dict.fromkeys(("a", "a.", "a.jsonl", "a.é"), "FILE")},
    _literal_part: {
        **{"src/app": "src/app", "./src//app/": "src/app", "src/*.py": "src", "a\\b": "a/b", "**": ""},
        **{"src/[ab]/c": "src", "port:80": "port:80"},
    },
    picture_type: {
        **{picture(kind=kind): f"image/{kind.lower()}" for kind in ("PNG", "JPEG", "GIF", "WEBP")},
        b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>": None,
        b"<html><script>alert(1)</script>": None,
        **dict.fromkeys((b"%PDF-1.7", picture(kind="BMP"), b"RIFF0000WAVE", b""), None),
    },
}
"""The wording of values on pages."""


def test_each_value_is_told_as_its_row_says():
    rows = [(function, given, told) for function, table in TOLD.items() for given, told in table.items()]
    wrong = [(function.__name__, given, told) for function, given, told in rows if function(given) != told]
    assert wrong == []


def test_a_time_no_calendar_has_is_unknown_and_not_an_error():
    assert (moment(-1), moment(253_402_300_800_000), moment(10**30)) == (None, None, None)
    assert absolute(-1) == UNKNOWN_TIME
    assert absolute(253_402_300_799_999) == "9999-12-31 23:59:59 UTC"
    assert moment(NOW) == "2026-09-21T14:13:20.000Z"


@given(st.text())
def test_a_name_has_one_of_the_colours_without_regard_to_case(name):
    assert 0 <= tone(name) < TONES
    assert tone("GREENLAKE") == tone("GreenLake")
    assert len(initials(name)) in (1, 2, 3)


@given(st.text(alphabet="*_~`|[]()!#>-+ \na", max_size=400))
def test_any_body_has_a_gist_of_one_line(body):
    assert "\n" not in gist(body)


@each_row(
    "query, excerpt, marked",
    [
        (Term("epoch"), "The Epoch, the epochs", ["Epoch"]),
        (Term("migr", prefix=True), "migrate Migration immigrant", ["migrate", "Migration"]),
        (Term("cafe"), "Café cafés CAFE", ["Café", "CAFE"]),
        (Phrase(("disk", "full")), "the disk is full", ["disk", "full"]),
        (Not(Term("a"), Term("b")), "a b", ["a"]),
        (All((Term("a"), AnyOf((Term("b"), Term("c"))))), "a b c d", ["a", "b", "c"]),
        (Term("snake_case"), "snake case", ["snake", "case"]),
        (Term("script"), "<script>alert(1)</script>", ["script", "script"]),
    ],
)
def test_what_was_looked_for_is_marked(query, excerpt, marked):
    cut = pieces(excerpt, wanted(query))
    assert [text for text, hit in cut if hit] == marked
    assert "".join(text for text, _ in cut) == excerpt


def test_addresses_quote_what_they_hold():
    assert links.page("a b", "agents", "x/y?z") == "/p/a%20b/agents/x%2Fy%3Fz"
    assert links.page("p", "t", "t:1", after=0) == "/p/p/t/t%3A1?after=0"
    assert links.page("p", "search", q='"a&b"', order=None, cursor=5) == "/p/p/search?q=%22a%26b%22&cursor=5"
    assert links.attachment("ff", 3, "ü/\ud800.txt") == "/attachments/ff?message=3&name=%C3%BC%2F%3F.txt"


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
    **{"ink": ("paper", "sheet", "sunk", "mark"), "soft": ("paper", "sheet", "sunk", "blue-wash")},
    **{"link": ("paper", "sheet", "blue-wash"), "on-deep": ("deep",), "sheet": ("red",)},
    **{"red": ("red-wash",), "amber": ("amber-wash", "sheet"), "green": ("green-wash", "sheet")},
}


def test_text_stands_out_from_its_ground_as_wcag_aa_asks():
    assert LIGHT["paper"] != DARK["paper"]
    for palette in (LIGHT, DARK):
        pairs = [(text, ground) for text, grounds in TEXT_ON.items() for ground in grounds]
        assert [pair for pair in pairs if _contrast(*(palette[one] for one in pair)) < 4.5] == []
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
    scripts = {one.name: one.read_text(encoding="utf-8") for one in STATIC.iterdir() if one.suffix == ".js"}
    sizes = {name: len(text.encode()) for name, text in scripts.items()}
    common = sizes.pop("postroom.js")
    # A page loads the common script, and at most one of its own.
    assert {name: size for name, size in sizes.items() if common + size >= 20_000} == {}
    for text in scripts.values():
        assert not re.search(
            r"innerHTML *=|outerHTML|insertAdjacent|document\.write|\beval\b|Function\(", text
        )
