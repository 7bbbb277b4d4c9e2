"""Overlap against two readings of the patterns that share no code with it.

`expression` turns a text into one regular expression for whole paths, and every short path is tried with it.
`Automaton` turns it into states and edges; the product of two is searched for a common path of any length.
A literal and a glob have a separate rule: `meets_literal` reads it off the texts.
"""

import json
import re
from collections import deque
from functools import cache
from itertools import product
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.contracts.errors import InvalidPattern
from postroom.mail import globs
from postroom.mail.globs import Pattern, list_prefixes, matches, overlap, overlapping, parse_pattern

pytestmark = pytest.mark.long

PART = re.compile(r"\[[!^]?\]?[^\]]*\]|.")


def is_literal(text: str) -> bool:
    return not re.search(r"[*?\[]", text)


def expression(text: str) -> str:
    """A regular expression for the paths that a pattern of these tests' grammar covers."""
    if is_literal(text):
        return re.escape(text) + "(/.+)?"
    names = text.split("/")
    written = ""
    for position, name in enumerate(names):
        is_last = position == len(names) - 1
        if name == "**":
            written += ".+" if is_last else "([^/]+/)*"
            continue
        for part in PART.findall(name):
            if part[0] == "[":
                written += "(?!/)" + part.replace("[!", "[^")
            else:
                written += {"*": "[^/]*", "?": "[^/]"}.get(part, re.escape(part))
        written += "" if is_last else "/"
    return written


@cache
def paths(alphabet: str, longest: int) -> tuple[str, ...]:
    """Every path over the alphabet up to a length; no name in it is empty."""
    found, grown = [], [""]
    for _ in range(longest):
        grown = [path + one for path in grown for one in alphabet if one != "/" or path[-1:] not in ("", "/")]
        found += [path for path in grown if path[-1] != "/"]
    return tuple(found)


@cache
def covered(text: str, alphabet: str, longest: int, *, ignores_case: bool = False) -> frozenset[str]:
    """The short paths that a pattern covers."""
    fits = re.compile(expression(text), re.IGNORECASE if ignores_case else 0).fullmatch
    return frozenset(path for path in paths(alphabet, longest) if fits(path))


class Automaton:
    """States and edges of one pattern over a small alphabet; an edge without letters is free."""

    def __init__(self, text: str, alphabet: str) -> None:
        self.letters = frozenset(alphabet) - {"/"}
        self.edges: list[list[tuple[frozenset[str], int]]] = [[]]
        at = 0
        *leading, last = text.split("/")
        for name in leading:
            at = self.any_names(at) if name == "**" else self.add(self.name(at, name), frozenset("/"))
        at = self.some_names(at) if last == "**" else self.name(at, last)
        self.ends = {at}
        if is_literal(text):
            self.ends.add(self.some_names(self.add(at, frozenset("/"))))

    def add(self, source: int, letters: frozenset[str]) -> int:
        self.edges.append([])
        self.edges[source].append((letters, len(self.edges) - 1))
        return len(self.edges) - 1

    def name(self, at: int, name: str) -> int:
        if name == "*":  # the only name without a letter of its own, and no name is empty
            at = self.add(at, self.letters)
        for part in PART.findall(name):
            if part == "*":
                at = self.add(at, frozenset())
                self.edges[at].append((self.letters, at))
            elif part == "?" or part[0] == "[":
                one = re.compile(part.replace("[!", "[^").replace("?", "."))
                at = self.add(at, frozenset(letter for letter in self.letters if one.fullmatch(letter)))
            else:
                at = self.add(at, frozenset(part))
        return at

    def some_names(self, at: int) -> int:
        inside = self.add(at, self.letters)
        self.edges[inside].append((self.letters, inside))
        between = self.add(inside, frozenset("/"))
        self.edges[between].append((self.letters, inside))
        return inside

    def any_names(self, at: int) -> int:
        after = self.add(self.some_names(at), frozenset("/"))
        self.edges[at].append((frozenset(), after))
        return after


def common_path(a: str, b: str, alphabet: str) -> str | None:
    """A path that both cover, found in the product of their automata; None when there is none."""
    one, other = Automaton(a, alphabet), Automaton(b, alphabet)
    seen, queue = {(0, 0)}, deque([(0, 0, "")])
    while queue:
        x, y, path = queue.popleft()
        if x in one.ends and y in other.ends:
            return path
        steps = [(target, y, "") for letters, target in one.edges[x] if not letters]
        steps += [(x, target, "") for letters, target in other.edges[y] if not letters]
        for (mine, to), (theirs, onto) in product(one.edges[x], other.edges[y]):
            steps += [(to, onto, letter) for letter in sorted(mine & theirs)[:1]]
        for to, onto, letter in steps:
            if (to, onto) not in seen:
                seen.add((to, onto))
                queue.append((to, onto, path + letter))
    return None


def is_common(path: str | None, a: str, b: str) -> bool:
    return path is not None and all(re.fullmatch(expression(text), path) for text in (a, b))


def is_anchored(glob: str, literal: str) -> bool:
    """Whether the names before the glob's first wildcard are the literal or lie below it."""
    leading = re.split(r"[*?\[]", glob)[0].rpartition("/")[0]
    return f"{leading}/".startswith(f"{literal}/")


def meets_literal(a: str, b: str) -> bool | None:
    """Whether a literal and a glob overlap, in either order; None where the two are of one kind."""
    if is_literal(a) == is_literal(b):
        return None
    literal, glob = (a, b) if is_literal(a) else (b, a)
    return is_anchored(glob, literal) or re.fullmatch(expression(glob), literal) is not None


def are_near(a: Pattern, b: Pattern) -> bool:
    """The store's narrowing: the prefix of one pattern is a whole-name prefix of the other's."""
    return a.prefix in list_prefixes(b.prefix) or b.prefix in list_prefixes(a.prefix)


def pattern_texts(letters: str, *, longest_name: int, most_names: int) -> st.SearchStrategy[str]:
    """Texts in their one spelling, of a small grammar over the letters."""
    sets = [
        f"[{letters}]",
        f"[!{letters[0]}]",
        f"[!{letters[1]}]",
        f"[{letters[0]}-{letters[1]}]",
        f"[!{letters}]",
    ]
    part = st.sampled_from([*letters, *letters, *letters, "*", "*", "?", *sets])
    name = st.lists(part, min_size=1, max_size=longest_name).map("".join)
    pattern = st.lists(st.one_of(name, name, st.just("**")), min_size=1, max_size=most_names).map("/".join)
    return pattern.filter(lambda raw: ".." not in raw.split("/")).map(lambda raw: parse_pattern(raw).text)


SMALL = pattern_texts("ab.", longest_name=2, most_names=3)
LARGE = pattern_texts("ab.", longest_name=6, most_names=7)
LITERAL = st.lists(st.sampled_from(["a", "b", "ab", "a.b", "b."]), min_size=1, max_size=4).map("/".join)
MIXED = pattern_texts("Bak", longest_name=3, most_names=1)
fixed = settings(max_examples=400)


def test_every_pair_of_a_small_grammar_overlaps_exactly_when_a_path_is_covered_by_both() -> None:
    names = ["a", "b", "*", "?", "a*", "*b", "[!a]", "**"]
    raws = ("/".join(chosen) for count in (1, 2, 3) for chosen in product(names, repeat=count))
    texts = sorted({parse_pattern(raw).text for raw in raws})
    patterns = [parse_pattern(text) for text in texts]
    position = {path: index for index, path in enumerate(paths("ab/", 7))}
    sets = [sum(1 << position[path] for path in covered(text, "ab/", 7)) for text in texts]
    found = [set(overlapping(pattern, patterns)) for pattern in patterns]
    ruled = [[meets_literal(one, other) for other in texts] for one in texts]
    common = [
        {j for j, theirs in enumerate(sets) if (mine & theirs if rule[j] is None else rule[j])}
        for mine, rule in zip(sets, ruled, strict=True)
    ]
    missed = [(texts[i], texts[j]) for i, js in enumerate(common) for j in js - found[i]]
    wrong = [
        (texts[i], texts[j]) for i, js in enumerate(found) for j in js - common[i] if ruled[i][j] is False
    ]
    doubtful = [(texts[i], texts[j]) for i, js in enumerate(found) for j in js - common[i]]
    assert len(texts) > 450
    assert sum(map(len, common)) > 50_000
    assert missed == []
    assert wrong == []
    assert len(doubtful) < 2_000, "the paths tried are too short to be a test"
    assert [pair for pair in doubtful if not is_common(common_path(*pair, "abz/"), *pair)] == []
    assert all(are_near(patterns[i], patterns[j]) for i, js in enumerate(found) for j in js)


@fixed
@given(SMALL, SMALL)
def test_two_small_patterns_overlap_exactly_when_a_path_is_covered_by_both(a: str, b: str) -> None:
    one, other = parse_pattern(a), parse_pattern(b)
    answer = overlap(one, other)
    assert answer == overlap(other, one)
    assert not answer or are_near(one, other)
    if (rule := meets_literal(a, b)) is not None:
        assert answer == rule
        return
    common = covered(a, "ab./", 6) & covered(b, "ab./", 6)
    assert answer or not common
    assert not answer or common or is_common(common_path(a, b, "ab.z/"), a, b)


@fixed
@given(LARGE, LARGE)
def test_two_large_patterns_overlap_exactly_when_the_product_of_their_automata_is_not_empty(
    a: str, b: str
) -> None:
    one, other = parse_pattern(a), parse_pattern(b)
    path = common_path(a, b, "ab.z/")
    assert path is None or is_common(path, a, b)
    assert path is None or (matches(one, path) and matches(other, path))
    assert path is None or are_near(one, other)
    rule = meets_literal(a, b)
    assert overlap(one, other) == overlap(other, one) == (path is not None if rule is None else rule)
    assert path is not None or not rule, "what the rule of literals adds has no common path"


@fixed
@given(st.one_of(SMALL, LARGE), LARGE)
def test_short_rows_are_decided_as_long_ones_are(a: str, b: str) -> None:
    one, other = parse_pattern(a), parse_pattern(b)
    by_trying = overlap(one, other)
    with mock.patch.object(globs, "_SHORT", -1):
        assert overlap(one, other) == by_trying


@fixed
@given(LITERAL, st.integers(0, 4), st.one_of(SMALL, LARGE, LITERAL))
def test_a_literal_overlaps_what_matches_it_or_is_anchored_at_or_below_it(
    literal: str, kept: int, rest: str
) -> None:
    names = literal.split("/")
    for text in (
        rest,
        "/".join([*names[:kept], rest]),
        "/".join([*names[:kept], "*", rest]),
        f"{literal}/**",
    ):
        one, other = parse_pattern(literal), parse_pattern(text)
        rule = meets_literal(literal, other.text)
        expected = common_path(literal, other.text, "ab.z/") is not None if rule is None else rule
        assert overlap(one, other) == overlap(other, one) == expected
        assert not expected or are_near(one, other)


def test_a_glob_is_anchored_at_or_below_a_literal_exactly_when_all_it_matches_lies_below() -> None:
    names = ["a", "b", "*", "?", "a*", "*b", "[!a]", "**"]
    raws = ("/".join(chosen) for count in (1, 2, 3) for chosen in product(names, repeat=count))
    texts = sorted({parse_pattern(raw).text for raw in raws})
    literals = [text for text in texts if is_literal(text)]
    tried = {text: covered(text, "abz/", 6) for text in texts if not is_literal(text)}
    assert len(tried) > 400
    assert all(tried.values())
    anchored = {(glob, literal) for glob in tried for literal in literals if is_anchored(glob, literal)}
    below = {
        (glob, literal)
        for glob, found in tried.items()
        for literal in literals
        if all(path.startswith(f"{literal}/") for path in found)
    }
    assert len(anchored) > 100
    assert anchored == below


@fixed
@given(SMALL)
def test_a_pattern_matches_exactly_the_paths_that_its_regular_expression_does(text: str) -> None:
    pattern = parse_pattern(text)
    tried = paths("ab./", 5)
    assert [path for path in tried if matches(pattern, path)] == [
        path for path in tried if path in covered(text, "ab./", 5)
    ]


@fixed
@given(MIXED, MIXED)
def test_where_case_is_ignored_names_overlap_exactly_when_a_folded_one_is_covered_by_both(
    a: str, b: str
) -> None:
    one, other = (parse_pattern(text, case_sensitive=False) for text in (a, b))
    common = covered(a, "abkz", 6, ignores_case=True) & covered(b, "abkz", 6, ignores_case=True)
    assert overlap(one, other) == overlap(other, one) == bool(common)
    assert not common or are_near(one, other)
    mixed, mine = paths("aAbBkz/", 3), covered(a, "aAbBkz/", 3, ignores_case=True)
    assert [path for path in mixed if matches(one, path)] == [path for path in mixed if path in mine]


@fixed
@given(SMALL, st.lists(st.one_of(SMALL, LARGE, st.sampled_from(["port:8080", "db:a"])), max_size=12))
def test_many_at_once_are_decided_as_one_by_one(text: str, others: list[str]) -> None:
    live = [parse_pattern(other) for other in others]
    for pattern in (parse_pattern(text), *live[:2]):
        assert overlapping(pattern, live) == [i for i, other in enumerate(live) if overlap(other, pattern)]


ANYTHING = st.one_of(
    st.text(st.characters(), max_size=12),
    st.text(st.sampled_from("ab.*?[]!^-/~:\\ \0C"), max_size=12),
    st.lists(
        st.sampled_from(["a", "..", ".", "", "*", "**", "[a-b]", "[", "]", "/", "./", ":", "~", "ab:"]),
        max_size=8,
    ).map("".join),
)


def read(raw: str, *, case_sensitive: bool) -> Pattern | InvalidPattern:
    try:
        return parse_pattern(raw, case_sensitive=case_sensitive)
    except InvalidPattern as refused:
        return refused


@settings(fixed, max_examples=1_200)
@given(ANYTHING, st.booleans())
def test_any_text_is_read_the_same_twice_or_refused_with_a_remedy(raw: str, case_sensitive: bool) -> None:
    pattern = read(raw, case_sensitive=case_sensitive)
    if isinstance(pattern, InvalidPattern):
        assert pattern.remedy
        assert json.dumps(pattern.as_dict(), ensure_ascii=False).encode("utf-8")
        return
    again = parse_pattern(pattern.text, case_sensitive=case_sensitive)
    assert again == pattern
    assert overlap(pattern, again)
    assert are_near(pattern, again)


def test_the_two_readings_agree_with_each_other() -> None:
    for a, b in product(["a", "a/**", "**/b", "*", "a*/?", "[!a]b", "**/a/**/b"], repeat=2):
        common = covered(a, "ab/", 7) & covered(b, "ab/", 7)
        path = common_path(a, b, "ab/")
        assert (path is not None) == bool(common)
        assert path is None or is_common(path, a, b)
