"""The meaning of a reservation pattern, refusals, and pairs that overlap."""

import itertools

import pytest

from postroom.contracts.errors import InvalidPattern
from postroom.mail import globs
from postroom.mail.globs import covers, list_prefixes, matches, overlap, overlapping, parse_pattern
from table_rows import each_row


def test_a_pattern_is_kept_in_one_spelling_that_reads_back_as_itself(subtests: pytest.Subtests) -> None:
    for raw, text in [
        *(("src/app.py", "src/app.py"), ("./src/app.py", "src/app.py"), ("././src//app.py", "src/app.py")),
        *(("src/./app.py", "src/app.py"), ("src/", "src/**"), ("src//", "src/**"), ("src/.", "src/**")),
        *((".", "**"), ("./", "**"), ("**/", "**"), ("*/", "*/**"), ("src/**/", "src/**")),
        *(("src/**/**/a", "src/**/a"), ("src/***/a", "src/**/a"), ("a**b/c***", "a*b/c*")),
        *(("[**]**x", "[**]*x"), ("{a,b}/!c #d", "{a,b}/!c #d"), (" padded ", " padded ")),
        *((".github/workflows/*.yml", ".github/workflows/*.yml"), ("./~notes", "./~notes")),
        *((".//note:todo", "./note:todo"), ("docs/note:todo", "docs/note:todo"), ("port:8080", "port:8080")),
        *(("service:db//x*[", "service:db//x*["), ("Straße/ÄÖÜ.md", "Straße/ÄÖÜ.md")),
    ]:
        with subtests.test(raw=raw, text=text):
            pattern = parse_pattern(raw)
            assert pattern.text == text
            assert parse_pattern(pattern.text) == pattern


@each_row(
    "raw, problem",
    [
        *(("", "is blank"), (" \u3000", "is blank"), ("\t", "is blank"), ("..", "contains `..`")),
        *(("../src", "contains `..`"), ("src/../../etc", "contains `..`"), ("src/..", "contains `..`")),
        *(("**/..", "contains `..`"), ("service:a/../b", "contains `..`"), ("[.][.]/etc", "with sets")),
        *(("src/**/[..]/a", "with sets"), ("src/[.-.]/*", "with sets"), ("src/[.]", "with sets")),
        *(("/etc/passwd", "absolute"), ("//server/share", "absolute"), ("/", "absolute")),
        *(("src\\app.py", "backslash"), ("\\\\server\\share", "backslash"), ("..\\..\\etc", "backslash")),
        *(("a\\*", "backslash"), ("port:\\8080", "backslash"), ("C:", "drive letter")),
        *(("C:/src", "drive letter"), ("c:app.py", "drive letter"), ("./C:/src", "drive letter")),
        *(("~", "home folder"), ("~/src", "home folder"), ("~root/src", "home folder")),
        *(("a\0b", "control character"), ("a\nb", "control character")),
        *(("src/app.py\n", "control character"), ("a\x7fb", "control character")),
        *(("a\x85b", "control character"), ("a\ud800b", "not valid Unicode")),
        *(("port:\udfff", "not valid Unicode"), ("a" * 1025, "longer than 1024"), ("a" * 1021 + "/", None)),
        *(("a" * 1023 + "/", "longer than 1024"), ("src/[ab", "has a ["), ("src/[a/b]", "has a [")),
        *(("[]", "has a ["), ("[!]", "has a ["), ("[^]", "has a ["), ("[[:alpha:]]", "character class")),
        *(("[z-a]", "reverse order"), ("?" * 32, None), ("?" * 33, "more than 32 wildcards")),
        ("*a" * 16 + "/**" + "/[ab]x?" * 8, "more than 32 wildcards"),
        *(("http://host", "neither a path nor a resource"), ("file:/etc", "neither a path nor a resource")),
        ("port:", "neither a path nor a resource"),
    ],
)
def test_what_leaves_the_root_or_cannot_be_read_is_refused_by_name(raw: str, problem: str | None) -> None:
    if problem is None:
        assert len(parse_pattern(raw).text) <= globs.MAX_LENGTH
        return
    with pytest.raises(InvalidPattern) as refused:
        parse_pattern(raw)
    assert problem in refused.value.message
    assert refused.value.remedy
    assert refused.value.code == "invalid_pattern"
    shown = refused.value.value
    assert isinstance(shown, str)
    assert shown == raw or len(raw) > 200 or "\\u" in shown or "\\ud" in shown
    assert len(refused.value.message.encode()) < 2000


def test_the_prefix_holds_the_leading_names_without_wildcards(subtests: pytest.Subtests) -> None:
    for raw, prefix, is_literal in [
        *(("src/app/**/*.py", "src/app", False), ("src/app.py", "src/app.py", True), ("**/*.py", "", False)),
        *(("*.py", "", False), ("src/app*/x.py", "src", False), ("src/", "src", False), (".", "", False)),
        *(("app/[[]slug]/page.tsx", "app/[slug]/page.tsx", True), ("[*][*]/x", "**/x", True)),
        *(("[~]/x", "~/x", True), ("port:8080", "port:8080", True), ("./port:8080", "port:8080", True)),
    ]:
        with subtests.test(raw=raw, prefix=prefix, is_literal=is_literal):
            pattern = parse_pattern(raw)
            assert (pattern.prefix, pattern.is_literal) == (prefix, is_literal)


def test_the_prefix_is_folded_where_case_is_ignored_and_the_text_is_not() -> None:
    pattern = parse_pattern("Src/ÄPP/*.PY", case_sensitive=False)
    assert (pattern.text, pattern.prefix) == ("Src/ÄPP/*.PY", "src/äpp")


def test_prefixes_run_from_the_root_to_the_prefix_itself() -> None:
    assert list_prefixes("a/b/c") == ("", "a", "a/b", "a/b/c")
    assert list_prefixes("a") == ("", "a")
    assert list_prefixes("") == ("",)


def test_a_path_with_an_empty_name_is_covered_by_nothing(subtests: pytest.Subtests) -> None:
    for path in ["", "/", "/a", "a/", "a//b", "//"]:
        with subtests.test(path=path):
            assert not any(
                matches(parse_pattern(raw), path) for raw in ["**", "*", "a", "a/**", "**/b", "*/*", "**/*"]
            )


def test_a_resource_covers_itself_alone() -> None:
    covered = [
        path
        for path in ("port:8080", "port:8081", "a/port:8080")
        if matches(parse_pattern("port:8080"), path)
    ]
    assert covered == ["port:8080"]


def test_patterns_made_to_blow_up_are_decided_all_the_same(subtests: pytest.Subtests) -> None:
    for a, b, expected in [
        ("*a" * 31 + "*", "a" * 1024, True),
        ("*a" * 15 + "*?cb", "a" * 1022 + "??", True),
        ("*a" * 15 + "*?cb", "a" * 1023 + "?", False),
        ("*a" * 31, "*a" * 30 + "*b", False),
        ("*" + "a" * 480 + "?" + "a" * 500 + "*", "a" * 500 + "?" + "a" * 500, True),
        ("*" + "a" * 300 + "?b" + "a" * 200 + "*", "a" * 1000 + "?", False),
        ("*" + "a" * 300 + "?b" + "a" * 200 + "*", "a" * 500 + "?" + "a" * 500, True),
        ("x/" + "**/a/" * 30 + "b", "x/" + "a/" * 500 + "c", False),
        ("x/" + "**/a/" * 30 + "b", "x/" + "a/" * 500 + "c/**", True),
        ("**/" + "a/" * 200 + "b/**/x", "a/" * 490 + "?", False),
        ("**/" + "a/" * 200 + "?/**/x", "a/" * 490 + "?", True),
        ("x/" + "**/?a/" * 15 + "b", "x/" + "*/a/" * 30 + "a/" * 400 + "?", False),
    ]:
        with subtests.test(a=a, b=b, expected=expected):
            one, other = parse_pattern(a), parse_pattern(b)
            assert overlap(one, other) is expected
            assert overlap(other, one) is expected


def test_positions_come_in_the_order_of_the_live_patterns() -> None:
    live = [parse_pattern(raw) for raw in ["src/b.py", "docs/**", "**/*.py", "src", "port:8080", "src/*.js"]]
    assert overlapping(parse_pattern("src/a.py"), live) == [2, 3]
    assert overlapping(parse_pattern("src"), live) == [0, 3, 5]
    assert overlapping(parse_pattern("src/*.py"), live) == [0, 2, 3]
    assert overlapping(parse_pattern("port:8080"), live) == [4]
    assert overlapping(parse_pattern("**"), live) == [0, 1, 2, 3, 5]
    assert overlapping(parse_pattern("**"), []) == []
    again = [parse_pattern(raw) for raw in ["*/a/x", "*/b/x", "*/a/y", "*/b/y", "*/a/x", "*/a"]]
    assert overlapping(parse_pattern("?/a/*"), again) == [0, 2, 4]
    assert overlapping(parse_pattern("?/b/x"), again) == [1]
    assert overlapping(parse_pattern("s/**"), again) == [0, 1, 2, 3, 4, 5]


PATTERNS = (
    *("a", "a/b", "a.py", "a/", "a/*", "a/**/b", "**", "**/*.py", "*.py", "*/*", "**/b", "a*", "?", "???"),
    *("a/?.py", "a/*.py", "a/**/*.py", "*/b/**", "**/a/**", "a/*/b", "?/?", "port:80"),
)
NAMES = ("a", "b", "a.py", "xyz", "b.py")


def test_what_a_pattern_covers_matches_no_path_beside_it() -> None:
    paths = ["/".join(names) for count in (1, 2, 3) for names in itertools.product(NAMES, repeat=count)]
    parsed = [parse_pattern(text) for text in PATTERNS]
    matched = {one.text: {path for path in paths if matches(one, path)} for one in parsed}
    for given, held in itertools.product(parsed, repeat=2):
        if covers(given, held) and not held.is_literal:
            assert matched[held.text] <= matched[given.text], (given.text, held.text)
    for given, held in (
        *(
            ("a", "a/b"),
            ("a/", "a"),
            ("a", "a/**"),
            ("a/**", "a/*.py"),
            ("**", "a/**/b"),
            ("**/*.py", "a/*.py"),
        ),
        *(("a/*", "a/b"), ("a/**/*.py", "a/?.py"), ("a/**", "a/**/*.py"), ("*.py", "a.py"), ("?", "a")),
    ):
        assert covers(parse_pattern(given), parse_pattern(held)), (given, held)
    for given, held in (("a/*", "a/**"), ("???", "a*"), ("a/b", "a"), ("*.py", "a*"), ("a/*", "a/*/b")):
        assert not covers(parse_pattern(given), parse_pattern(held)), (given, held)
