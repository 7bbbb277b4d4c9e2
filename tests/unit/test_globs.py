"""The meaning of a reservation pattern, refusals, and pairs that overlap."""

import pytest

from postroom.contracts.errors import InvalidPattern
from postroom.mail import globs
from postroom.mail.globs import matches, overlap, overlapping, parse_pattern, prefixes_of
from table_rows import each_row


def test_a_pattern_is_kept_in_one_spelling_that_reads_back_as_itself(subtests: pytest.Subtests) -> None:
    for raw, text in [
        ("src/app.py", "src/app.py"),
        ("./src/app.py", "src/app.py"),
        ("././src//app.py", "src/app.py"),
        ("src/./app.py", "src/app.py"),
        ("src/", "src/**"),
        ("src//", "src/**"),
        ("src/.", "src/**"),
        (".", "**"),
        ("./", "**"),
        ("**/", "**"),
        ("*/", "*/**"),
        ("src/**/", "src/**"),
        ("src/**/**/a", "src/**/a"),
        ("src/***/a", "src/**/a"),
        ("a**b/c***", "a*b/c*"),
        ("[**]**x", "[**]*x"),
        ("{a,b}/!c #d", "{a,b}/!c #d"),
        (" padded ", " padded "),
        (".github/workflows/*.yml", ".github/workflows/*.yml"),
        ("./~notes", "./~notes"),
        (".//note:todo", "./note:todo"),
        ("docs/note:todo", "docs/note:todo"),
        ("port:8080", "port:8080"),
        ("service:db//x*[", "service:db//x*["),
        ("Straße/ÄÖÜ.md", "Straße/ÄÖÜ.md"),
    ]:
        with subtests.test(raw=raw, text=text):
            pattern = parse_pattern(raw)
            assert pattern.text == text
            assert parse_pattern(pattern.text) == pattern


@each_row(
    "raw, problem",
    [
        ("", "is blank"),
        (" \u3000", "is blank"),
        ("\t", "is blank"),
        ("..", "contains `..`"),
        ("../src", "contains `..`"),
        ("src/../../etc", "contains `..`"),
        ("src/..", "contains `..`"),
        ("**/..", "contains `..`"),
        ("service:a/../b", "contains `..`"),
        ("[.][.]/etc", "with sets"),
        ("src/**/[..]/a", "with sets"),
        ("src/[.-.]/*", "with sets"),
        ("src/[.]", "with sets"),
        ("/etc/passwd", "absolute"),
        ("//server/share", "absolute"),
        ("/", "absolute"),
        ("src\\app.py", "backslash"),
        ("\\\\server\\share", "backslash"),
        ("..\\..\\etc", "backslash"),
        ("a\\*", "backslash"),
        ("port:\\8080", "backslash"),
        ("C:", "drive letter"),
        ("C:/src", "drive letter"),
        ("c:app.py", "drive letter"),
        ("./C:/src", "drive letter"),
        ("~", "home folder"),
        ("~/src", "home folder"),
        ("~root/src", "home folder"),
        ("a\0b", "control character"),
        ("a\nb", "control character"),
        ("src/app.py\n", "control character"),
        ("a\x7fb", "control character"),
        ("a\x85b", "control character"),
        ("a\ud800b", "not valid Unicode"),
        ("port:\udfff", "not valid Unicode"),
        ("a" * 1025, "longer than 1024"),
        ("a" * 1021 + "/", None),
        ("a" * 1023 + "/", "longer than 1024"),
        ("src/[ab", "has a ["),
        ("src/[a/b]", "has a ["),
        ("[]", "has a ["),
        ("[!]", "has a ["),
        ("[^]", "has a ["),
        ("[[:alpha:]]", "class of characters"),
        ("[z-a]", "backwards"),
        ("?" * 32, None),
        ("?" * 33, "more than 32 wildcards"),
        ("*a" * 16 + "/**" + "/[ab]x?" * 8, "more than 32 wildcards"),
        ("http://host", "neither a path nor a resource"),
        ("file:/etc", "neither a path nor a resource"),
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
        ("src/app/**/*.py", "src/app", False),
        ("src/app.py", "src/app.py", True),
        ("**/*.py", "", False),
        ("*.py", "", False),
        ("src/app*/x.py", "src", False),
        ("src/", "src", False),
        (".", "", False),
        ("app/[[]slug]/page.tsx", "app/[slug]/page.tsx", True),
        ("[*][*]/x", "**/x", True),
        ("[~]/x", "~/x", True),
        ("port:8080", "port:8080", True),
        ("./port:8080", "port:8080", True),
    ]:
        with subtests.test(raw=raw, prefix=prefix, is_literal=is_literal):
            pattern = parse_pattern(raw)
            assert (pattern.prefix, pattern.is_literal) == (prefix, is_literal)


def test_the_prefix_is_folded_where_case_is_ignored_and_the_text_is_not() -> None:
    pattern = parse_pattern("Src/ÄPP/*.PY", case_sensitive=False)
    assert (pattern.text, pattern.prefix) == ("Src/ÄPP/*.PY", "src/äpp")


def test_prefixes_run_from_the_root_to_the_prefix_itself() -> None:
    assert prefixes_of("a/b/c") == ("", "a", "a/b", "a/b/c")
    assert prefixes_of("a") == ("", "a")
    assert prefixes_of("") == ("",)


def test_a_pattern_covers_what_it_says_and_nothing_else(subtests: pytest.Subtests) -> None:
    for raw, yes, no in [
        ("src", ["src", "src/app.py", "src/a/b"], ["srcx", "x/src", "sr", "Src"]),
        ("src/", ["src/app.py", "src/a/b"], ["src", "srcx/a"]),
        ("a/**", ["a/b", "a/b/c", "a/.b"], ["a", "b", "ab/c"]),
        ("**", ["a", "a/b", ".x"], [""]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["a", "b", "a/b/c", "ab", "a/xb"]),
        ("**/b", ["b", "a/b", "x/y/b"], ["ab", "b/c", "a/ab"]),
        ("*.py", ["a.py", ".py", "..py"], ["a/b.py", "a.pyc", "a.py/x"]),
        ("a*", ["a", "ab"], ["b", "ab/c"]),
        ("a**b", ["ab", "axxb"], ["a/b", "axb/c"]),
        ("a/*", ["a/b"], ["a/", "a", "a/b/c"]),
        ("?", ["a", "ß", "😀", "\udc80"], ["", "ab", "/"]),
        ("a?b", ["axb", "a.b"], ["a/b", "ab"]),
        ("[abc]x", ["ax", "cx"], ["dx", "x", "Ax"]),
        ("[a-c]", ["a", "b", "c"], ["d", "-"]),
        ("[!a-c]", ["d", "-", "."], ["a", "c", ""]),
        ("[^a]", ["b", "^"], ["a"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[!]a]", ["b"], ["]", "a"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[-a]", ["a", "-"], ["b"]),
        ("a[.-0]b", ["a.b", "a0b"], ["a/b", "a1b"]),
        ("a[!x]b", ["a.b"], ["a/b", "axb"]),
        ("[[]x]", ["[x]", "[x]/y"], ["x", "[x"]),
        ("[*].py", ["*.py"], ["a.py"]),
        ("{a,b}", ["{a,b}", "{a,b}/c"], ["a", "b"]),
        ("!a", ["!a"], ["b"]),
        ("*a*b*c*", ["abc", "xaxbxcx", "aabbcc"], ["acb", "ab/c"]),
        ("*ab*ba", ["abba", "abxba", "ababba"], ["aba", "ab"]),
        ("**/x/**/y/**", ["x/y/z", "a/x/b/y/c/d"], ["x/y", "y/x/z"]),
        ("*[ab]*?x", ["a-x", "zab-x"], ["ax", "cc-x"]),
        ("port:8080", ["port:8080"], ["port:80800", "port:8080/x", "port"]),
        ("service:*", ["service:*"], ["service:db"]),
        ("./port:8080", ["port:8080", "port:8080/x"], ["./port:8080"]),
    ]:
        with subtests.test(raw=raw, yes=yes, no=no):
            pattern = parse_pattern(raw)
            assert [path for path in yes if not matches(pattern, path)] == []
            assert [path for path in no if matches(pattern, path)] == []


def test_a_path_with_an_empty_name_is_covered_by_nothing(subtests: pytest.Subtests) -> None:
    for path in ["", "/", "/a", "a/", "a//b", "//"]:
        with subtests.test(path=path):
            assert not any(
                matches(parse_pattern(raw), path) for raw in ["**", "*", "a", "a/**", "**/b", "*/*", "**/*"]
            )


def test_two_patterns_overlap_in_either_order_or_not_at_all(subtests: pytest.Subtests) -> None:
    for a, b, expected in [
        ("src", "src", True),
        ("src", "src/app.py", True),
        ("src/app.py", "src/app.pyc", False),
        ("src/app.py", "src/other.py", False),
        ("src", "src/**", True),
        ("src/app.py", "src/**", True),
        ("src/app.py", "src/*.py", True),
        ("src/app.py", "src/*.js", False),
        ("src/a/app.py", "src/*.py", False),
        ("src", "src/*/x.py", True),
        ("src/a", "src/*/x.py", False),
        ("src/a/y.py", "src/*/x.py", False),
        ("src/app.py", "**/app.py", True),
        ("src/app.py", "lib/**/app.py", False),
        ("src/*.py", "src/a*", True),
        ("src/*.py", "src/*.js", False),
        ("src/a*", "src/b*", False),
        ("src/*_test.py", "src/test_*", True),
        ("src/**/*.py", "src/app/**", True),
        ("src/**", "lib/**", False),
        ("src/**", "src/*", True),
        ("a/**", "a", True),
        ("a/**", "*", False),
        ("**/a", "**/b", False),
        ("**/a/**", "**/b/**", True),
        ("a/**/b", "a/b/?", True),
        ("a/**/b", "a/b/[!b]", False),
        ("a/**/b", "a/b/c", False),
        ("a/**/b", "a/b/c/**", True),
        ("a/**/b", "*/x/*", True),
        ("a/**/b/**/c", "a/*/*/c", True),
        ("a/**/b/**/c", "a/c", False),
        ("a/**/b/**/c", "a/c/**", True),
        ("a/**/b/**/c", "a/?/c", True),
        ("a/**/b/**/c", "a/[!b]/c", False),
        ("**/name_1*.py", "**/name_2*.py", False),
        ("**/name_1*.py", "**/name_12*.py", True),
        ("**/a*a", "**/a", False),
        ("**/a*a", "**/?", False),
        ("*/a*a", "*/[a]?", True),
        ("a?c", "ab*", True),
        ("a?c", "*[xy]c", True),
        ("a[bc]d", "a[de]d", False),
        ("a[a-m]d", "a[!a-l]d", True),
        ("[!a-m]x", "[a-m]x", False),
        ("[!a]x", "[!b]x", True),
        ("a[.-0]b", "a[!.0]b", False),  # only a slash is left, and no name holds one
        ("*ab*ab*", "ab?b", True),
        ("*ab*ab*", "ab?ab", True),
        ("*ab*ab*", "a?b?", False),
        ("*ab*ab*", "a?ab", True),
        ("port:8080", "port:8080", True),
        ("port:8080", "port:8081", False),
        ("port:8080", "./port:8080", False),
        ("port:8080", "**", False),
        ("service:db", "service:db/x", False),
        ("service:a*", "service:ab", False),
        ("port:8080", "por?:8080", False),
        ("port:8080", "./port:8080/*", False),
    ]:
        with subtests.test(a=a, b=b, expected=expected):
            one, other = parse_pattern(a), parse_pattern(b)
            assert overlap(one, other) is expected
            assert overlap(other, one) is expected
            assert overlapping(one, [other, one, other]) == ([0, 1, 2] if expected else [1])


def test_a_literal_meets_a_glob_that_matches_it_or_is_anchored_at_or_below_it(
    subtests: pytest.Subtests,
) -> None:
    for literal, glob, expected in [
        ("src/app.py", "**/*.js", False),
        ("src/app.py", "src/*/**", False),
        ("src/app.py", "src/app.py/**", True),
        ("src", "sr?", True),
        ("src", "sr?/app.py", False),
        ("src", "*/app.py", False),
        ("src", "**/*.py", False),
        ("src", "**/src/*.py", False),
        ("src", "src/*.py", True),
        ("src", "src/**/*.py", True),
        ("src", "src/app/*.py", True),
        ("src/app", "src/app*", True),
        ("src/app", "src/app*/x.py", False),
        ("src/app", "src/apple/*.py", False),
        ("app/[[]id]", "app/[[]id]/*.tsx", True),
        ("app/[i]d", "app/id/*.tsx", True),
        ("./port:8080", "./port:8080/*", True),
    ]:
        with subtests.test(literal=literal, glob=glob, expected=expected):
            one, other = parse_pattern(literal), parse_pattern(glob)
            assert (one.is_literal, other.is_literal) == (True, False)
            assert overlap(one, other) is expected
            assert overlap(other, one) is expected
            assert overlapping(one, [other, one]) == ([0, 1] if expected else [1])


def test_a_folder_written_with_a_slash_meets_every_glob_that_reaches_into_it() -> None:
    into = [parse_pattern(raw) for raw in ["**/*.py", "*/app.py", "sr?/a/b", "src/*", "**/b/**", "*.py"]]
    for folder in ("src/", "src/**"):
        assert overlapping(parse_pattern(folder), into) == [0, 1, 2, 3, 4]


def test_case_is_ignored_only_where_the_file_system_ignores_it(subtests: pytest.Subtests) -> None:
    for a, b, expected in [
        ("SRC/App.py", "src/app.PY", True),
        ("SRC", "src/App/*.py", True),
        ("SRC", "src/app.py", True),
        ("SRC/*.PY", "src/app.py", True),
        ("*/README*", "docs/readme.md", True),
        ("[A-C]x", "bX", True),
        ("[!A-C]x", "bX", False),
        ("[a]x", "[!A]x", False),
        ("[k-l]", "[\u212aq]", True),  # the Kelvin sign is a capital k
        ("[!k]", "[\u212a]", False),
        ("Straße", "STRA\u1e9eE", True),
        ("Stra?e", "STRA\u1e9eE", True),
        ("ΣΑΣ", "σας", True),
        ("Port", "port", True),
        ("port:X", "port:x", False),
    ]:
        with subtests.test(a=a, b=b, expected=expected):
            if a in ("SRC/*.PY", "*/README*", "[A-C]x"):
                assert not overlap(parse_pattern(a), parse_pattern(b)), "case counts unless told otherwise"
            one, other = (parse_pattern(raw, case_sensitive=False) for raw in (a, b))
            assert overlap(one, other) is expected
            assert overlap(other, one) is expected


def test_a_path_is_folded_like_the_pattern_it_is_held_against() -> None:
    pattern = parse_pattern("Src/[A-C]?.PY", case_sensitive=False)
    assert matches(pattern, "sRC/bß.py")
    assert not matches(pattern, "src/dx.py")
    assert not matches(parse_pattern("Src/[A-C]?.PY"), "src/bx.py")


def test_folding_keeps_every_character_one_character_and_is_done_once() -> None:
    fold = globs._folded_character.__wrapped__
    folded = {character: fold(character) for character in map(chr, range(0x110000))}
    changed = {character: form for character, form in folded.items() if form != character}
    assert {len(form) for form in changed.values()} == {1}
    assert all(folded[form] == form for form in changed.values())
    assert max(changed) <= chr(globs._LAST_CASED)


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
