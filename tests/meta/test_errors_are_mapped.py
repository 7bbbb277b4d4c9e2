"""Every failure has one code, a place in the tree that is drawn, an HTTP status and an exit code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.cli.exit_codes import CODES, exit_code
from postroom.contracts import errors
from postroom.contracts.errors import PostroomError, all_errors
from postroom.services.statuses import STATUSES, status_of

KINDS = all_errors()
LEAVES = [kind for kind in KINDS if not kind.__subclasses__()]
SOURCE = Path(errors.__file__).parents[1]
TOLD_IN_SENTENCES = (
    "gateway/",  # a chat shows the message alone, as a sentence that says what to do
    "markdown.py",
    "web/",  # a page shows the form again
    "mail/archive/",  # the archive is told names that the mail room has checked
    "cli/client.py",  # it builds the errors of a server again
)
"""Where an error needs no remedy, and why."""


def test_codes_are_unique_and_written_alike() -> None:
    codes = [kind.code for kind in KINDS]
    assert len(set(codes)) == len(codes)
    assert [code for code in codes if not re.fullmatch(r"[a-z]+(_[a-z]+)*", code)] == []


def test_the_class_of_a_code_is_the_same_whatever_modules_are_imported() -> None:
    class Malformed(errors.InvalidArgument):
        """An error of a module that adds no code to the tree."""

    assert issubclass(Malformed, PostroomError)
    assert all_errors() == KINDS


def test_every_class_says_its_own_code() -> None:
    assert [kind.__name__ for kind in KINDS if "code" not in vars(kind)] == []


def test_a_leaf_has_a_status_of_its_own_and_an_exit_code_of_its_branch(subtests: pytest.Subtests) -> None:
    for kind in LEAVES:
        with subtests.test(kind=kind):
            assert kind in STATUSES
            assert 400 <= status_of(kind("x")) < 600
            nearest = next(one for one in kind.__mro__ if one in CODES)
            assert kind.retryable or nearest is not PostroomError
            assert exit_code(kind("x")) not in (0, 130, 141)


def test_status_and_exit_code_agree_on_who_must_act(subtests: pytest.Subtests) -> None:
    """A refusal has a status below 500; it exits with 2 if the caller must correct the call, with 75 if the caller can wait."""
    for kind in LEAVES:
        with subtests.test(kind=kind):
            refused = issubclass(kind, errors.InputError | errors.StateError | errors.AccessError)
            assert refused == (status_of(kind("x")) < 500)
            assert (refused and not kind.retryable) == (exit_code(kind("x")) == 2)
            assert kind.retryable == (exit_code(kind("x")) == 75)


def test_the_tree_that_is_drawn_is_the_tree() -> None:
    drawn = (errors.__doc__ or "").partition("`code`")[0]
    assert [kind.__name__ for kind in KINDS if not re.search(rf"\b{kind.__name__}\b", drawn)] == []
    named = set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w+\b", drawn))
    assert named <= {kind.__name__ for kind in KINDS}


def test_a_failure_travels_as_plain_data_with_all_its_parts() -> None:
    told = errors.TooLarge("too long", value=7, remedy="cut it", details={"limit": 5}).as_dict()
    assert told == {
        "code": "too_large",
        "message": "too long",
        "value": 7,
        "remedy": "cut it",
        "retryable": False,
        "details": {"limit": 5},
    }


def without_remedy() -> Iterator[str]:
    """Yield the places where an error that a caller must act on is made without a remedy."""
    for path in sorted(set(SOURCE.rglob("*.py")) - set((SOURCE / "testing").rglob("*.py"))):
        place = path.relative_to(SOURCE).as_posix()
        if place.startswith(TOLD_IN_SENTENCES):
            continue
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name | ast.Attribute):
                continue
            name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr
            kind = getattr(errors, name, None)
            if not (isinstance(kind, type) and issubclass(kind, errors.InputError | errors.StateError)):
                continue
            if not kind.default_remedy and not {"remedy", None} & {word.arg for word in call.keywords}:
                yield f"{place}:{call.lineno} {name}"


def test_an_error_that_a_caller_must_act_on_says_what_to_do() -> None:
    assert list(without_remedy()) == []
