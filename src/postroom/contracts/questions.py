"""The kinds of questions that agents ask people, and how all interfaces check the answers."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from hashlib import sha256
from itertools import islice
from math import isfinite
from typing import Any, Final, Literal

from postroom.contracts.errors import InvalidArgument, NotPermitted
from postroom.contracts.messages import Json, storable
from postroom.contracts.plain_answers import HUMAN, approves, fold_case, plain_yes_no
from postroom.contracts.quoting import exact, in_code_fence, is_blank, one_line
from postroom.contracts.records import Record
from postroom.contracts.tools import ResumeDecisionAction, ToolCallResume

MAX_TEXT_LENGTH: Final = 2_000
"""Maximum number of characters in an answer's text, and in a comment."""
MAX_CHOICE_LENGTH: Final = 60
"""Maximum number of characters in a choice, so that every platform can show the choice on a button."""
MAX_CHOICES: Final = 20
MAX_FIELDS: Final = 10
OPERATOR: Final = "operator"
"""The address of all operators: those who answer on web pages or at the command line, and operators in chats.
"""
_MAX_ID_LENGTH: Final = 512
_MAX_NAME_LENGTH: Final = 200
_MAX_SHOWN_LENGTH: Final = 60
"""Maximum number of characters of a rejected value that the error repeats."""
_FIELD_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_PAIR: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]{0,63})\s*[=:]\s*(.*?)\s*")
_FIELD_START: Final = re.compile(r"(?:^|(?<=[\s,]))([A-Za-z_][A-Za-z0-9_.-]{0,63})\s*([=:](?!//))(\s*)")
_MAX_COMPARED: Final = 20
"""Maximum number of unknown names on a line that are compared with the names of a form's fields."""
_SCHEMA_KEYS: Final = (
    *("type", "properties", "required", "title", "description", "$schema", "additionalProperties"),
)
_FIELD_KEYS: Final = ("type", "title", "description")
_NUMBER_KEYS: Final = ("minimum", "maximum")
_STRING_KEYS: Final = ("minLength", "maxLength")
NOBODY: Final = "nobody"
"""The name of the answerer if a question ended without an answer from a person."""
IN_WINDOW: Final = "window"
"""The prefix of the ids of decisions that were made in the window of the client program that asked."""
ASKED_AGAIN: Final = "again"
"""The prefix of the ids of decisions that close a question because its agent asked it in another form."""
UNSEEN: Final = "unseen"
"""The prefix of the ids of decisions that close a question in the turn that asked it, which nobody saw."""
SILENT: Final = "silence"
"""The prefix of the ids of decisions that were made by a timeout."""
BY_MAIL: Final = "mail"
"""The prefix of the ids of decisions that were made by a reply."""
PAGES: Final = "page"
COMMAND_LINE: Final = "operator"
OVER_HTTP: Final = "http"
NOTIFICATION: Final = "notification"
_SURFACES: Final = {
    PAGES: "on the pages",
    COMMAND_LINE: "at the command line",
    OVER_HTTP: "over HTTP",
    NOTIFICATION: "in a notification",
    "chat": "in a chat",
    BY_MAIL: "by mail",
    IN_WINDOW: "in the window of the client",
}
"""The surfaces on which people answer, keyed by the prefix of the decision's id."""
_YES_NO: Final = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}


def answered_where(decision: ToolCallResume) -> str:
    """Return the name of the surface on which a person answered a question, or "" without an answer."""
    return _SURFACES.get(decision.decision_id.partition("/")[0], "")


def form_in_words(answer: str) -> str:
    """Return the answer to a form as `name = value`, for a sentence that quotes it; other answers stay."""
    try:
        values, end = json.JSONDecoder().raw_decode(answer)
    except (ValueError, RecursionError):
        return answer
    if not isinstance(values, dict):
        return answer
    said = [
        f"{name} = {value if isinstance(value, str) else json.dumps(value)}" for name, value in values.items()
    ]
    return ", ".join(said) + answer[end:]


class _Misfit(ValueError):
    """Raised if a question does not accept an answer."""


class QuestionKind(StrEnum):
    """The kind of answer that a question accepts."""

    YES_NO = "yes_no"
    CHOICE = "choice"
    TEXT = "text"
    FORM = "form"
    FILE = "file"
    """Files that are attached to a reply to the message with the question."""


class FormField(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A field of a form."""

    name: str
    type: Literal["string", "number", "integer", "boolean"] = "string"
    title: str = ""
    choices: tuple[str, ...] = ()
    is_required: bool = False
    least: float | None = None
    """The smallest number, or the smallest number of characters, that the field accepts."""
    most: float | None = None
    """The largest number, or the largest number of characters, that the field accepts."""

    @property
    def described(self) -> str:
        """The name of the form field, with the accepted values."""
        words = {"string": "text", "boolean": "yes or no"}
        taken, limits = " or ".join(self.choices) or words.get(self.type, self.type), ""
        if span := [f"{limit:g}" for limit in (self.least, self.most) if limit is not None]:
            word = "" if len(span) > 1 else "at least " if self.most is None else "at most "
            limits = f", {word}{' to '.join(span)}{' characters' if self.type == 'string' else ''}"
        return f"{self.name} ({taken}{limits}{'' if self.is_required else ', optional'})"


class Asked(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The kind of answer that a question accepts, and the people who may answer.

    The default is a yes or no from anybody.
    """

    kind: QuestionKind = QuestionKind.YES_NO
    choices: tuple[str, ...] = ()
    fields: tuple[FormField, ...] = ()
    to: tuple[str, ...] = ()
    """The addresses of the people who may answer, or `operator`; empty if anybody may answer."""
    not_by: tuple[str, ...] = ()
    """The addresses of people or agents who may not answer."""
    action: str = ""
    """The exact action that a yes permits; empty if the question describes the action."""
    default: Json = None
    """The answer that is used if nobody answers in time; it is never a yes."""
    in_words: bool = False
    """Whether a yes-or-no question also accepts other words as an answer; such an answer permits nothing."""

    @property
    def takes(self) -> str:
        """A description of the answers that the question accepts."""
        match self.kind:
            case QuestionKind.CHOICE:
                return f"one of: {', '.join(self.choices)}"
            case QuestionKind.TEXT:
                return "a text"
            case QuestionKind.FORM:
                return f"the fields {', '.join(field.described for field in self.fields)}"
            case QuestionKind.FILE:
                return "a file, attached to a reply to the message that asks"
        return "yes, no, or an answer in words" if self.in_words else "yes or no"

    @property
    def who(self) -> str:
        """A description of the people who may answer."""
        named = " or ".join(name.removeprefix(HUMAN) for name in self.to)
        named = named or "everybody who may answer questions"
        barred = " and ".join(name.removeprefix(HUMAN) for name in self.not_by)
        return f"{'an operator' if named == OPERATOR else named}{f', except {barred}' if barred else ''}"

    @property
    def permits(self) -> str:
        """The action that needs approval, in a Markdown code fence, or "" without an action."""
        return f"A yes permits exactly this:\n{in_code_fence(exact(self.action))}" if self.action else ""

    @property
    def digest(self) -> str:
        """The hash of the action that needs approval, or "" without an action."""
        return sha256(self.action.encode()).hexdigest()[:16] if self.action else ""


YES_OR_NO: Final = Asked()
"""Accepts a yes or a no from anybody who may answer questions."""


class Answerer(Record, frozen=True, kw_only=True):
    """The person or agent who gives an answer."""

    name: str = ""
    """The name that is stored with the answer; empty if it is unknown."""
    address: str = ""
    """`human:name` for a person, `name@project` for an agent; empty if it is unknown."""
    is_operator: bool = False


def person(name: str) -> Answerer:
    """Return an answerer with the operator's permissions for a person's name."""
    return Answerer(name=name, address=f"{HUMAN}{name}" if name else "", is_operator=True)


class Given(Record, frozen=True, kw_only=True):
    """An answer as received by an interface, before the answer is checked."""

    value: Json
    """The answer: a boolean, a text that a person typed, or the fields of a form."""
    by: Answerer
    at: str
    """The interface on which the answer was given, with which the id of the decision begins."""
    why: str = ""
    """The comment that the person added to the answer."""
    message: int = 0
    """The mail message with the answer, or 0 if the answer was not given by mail."""
    files: tuple[str, ...] = ()
    """The names of the files that are attached to this message."""


def decision_on(asked: Asked, number: str, question: str, given: Given, now: int) -> ToolCallResume:
    """Check an answer to a question, and return the resulting decision.

    Repeated answers on one interface give the same decision id.

    Raises:
        NotPermitted: The answerer may not answer this question.
        InvalidArgument: The question does not accept such an answer.
    """
    named = f"question {number} ({one_line(question)[:80]})"
    if not may_answer(asked, given.by):
        raise NotPermitted(
            f"{one_line(given.by.name) or 'somebody without a name'} may not answer {named}, which is still "
            f"open: it accepts {asked.takes}, from {asked.who}",
            value=number,
            remedy="ask one of the people who may answer it",
        )
    try:
        result, words = _read_files(given) if asked.kind is QuestionKind.FILE else _read(asked, given.value)
        _check_text("a comment", given.why)
    except _Misfit as error:
        raise InvalidArgument(
            f"{named} is still open: {error}; it accepts {asked.takes}, from {asked.who}",
            value=_abbreviate(given.value),
            remedy="answer the question again",
        ) from error
    if asked.digest:
        result["digest"] = asked.digest
    text = f"{words} ({one_line(given.why)})" if words and given.why else words or given.why
    approved = result.get("approved")
    word = "yes" if approved is True else "no" if approved is False else ""
    mark = word or sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()[:12]
    return ToolCallResume(
        decision_id=f"{given.at}/{number}/{mark}/{given.by.name}"[:_MAX_ID_LENGTH],
        action=ResumeDecisionAction.CANCEL if approved is False else ResumeDecisionAction.RESUME,
        result=result,
        reason=text or None,
        updated_at=now,
        by=given.by.name[:_MAX_NAME_LENGTH],
    )


def may_answer(asked: Asked, by: Answerer) -> bool:
    """Return whether a person or an agent may answer a question."""
    address = by.address.casefold()
    is_named = address in [name.casefold() for name in asked.to] or (OPERATOR in asked.to and by.is_operator)
    barred = [name.casefold() for name in asked.not_by]
    is_barred = bool(barred) and (not by.name.strip() or not address or address in barred)
    if address.startswith(HUMAN):
        is_barred |= _bare_name(by.name) in map(_bare_name, barred)
    return not is_barred and (not asked.to or is_named)


def _bare_name(address: str) -> str:
    return address.strip().casefold().removeprefix(HUMAN).partition("@")[0].strip()


def _read(asked: Asked, given: Json) -> tuple[dict[str, Json], str]:
    text = given.strip() if isinstance(given, str) else ""
    match asked.kind:
        case QuestionKind.YES_NO:
            approved = given if isinstance(given, bool) else _YES_NO.get(text.casefold())
            if asked.in_words and not isinstance(given, bool) and text.casefold() not in ("yes", "no"):
                approved = None  # "true" may answer "true or false?"; "Yes." stays as it is
            elif approved is None:
                approved = plain_yes_no(text)
            if approved is not None:
                return {"approved": approved}, ""
            if not asked.in_words:
                raise _Misfit(f"{_abbreviate(given)} is neither yes nor no")
            return _read_text(given)
        case QuestionKind.CHOICE:
            chosen = _choice(asked.choices, given)
            if chosen is None:
                raise _Misfit(f"{_abbreviate(given)} is not one of the choices")
            return {"choice": chosen}, chosen
        case QuestionKind.TEXT:
            return _read_text(given)
    typed = _parse_typed_form(asked.fields, given) if isinstance(given, str) else given
    if not isinstance(typed, Mapping):
        raise _Misfit(f"{_abbreviate(given)} is not a form")
    if unknown := [name for name in typed if name not in {field.name for field in asked.fields}]:
        raise _Misfit(f"the form has no field {_abbreviate(unknown[0])}")
    values: dict[str, Json] = {}
    for field in asked.fields:
        value = typed.get(field.name)
        if value is None or (isinstance(value, str) and is_blank(value)):
            if field.is_required:
                raise _Misfit(f"the field {field.name} is missing")
            continue
        values[field.name] = _value(field, value)
    return {"values": values}, json.dumps(values, ensure_ascii=False)


def _read_files(given: Given) -> tuple[dict[str, Json], str]:
    if not given.files:
        raise _Misfit("the answer has no file")
    files = ", ".join(f"`{one_line(name).replace('`', chr(39))}`" for name in given.files)
    said = f": {one_line(given.value)}" if isinstance(given.value, str) and given.value else ""
    _check_text("an answer", said)
    words = f"attached to message {given.message}: {files}{said}"
    return {"message": given.message, "files": list(given.files)}, words


def _read_text(given: Json) -> tuple[dict[str, Json], str]:
    text = given.strip() if isinstance(given, str) else ""
    if is_blank(text):
        is_empty = given is None or isinstance(given, str)
        raise _Misfit("the answer has no text" if is_empty else f"{_abbreviate(given)} is not text")
    _check_text("an answer", text)
    return {"text": storable(text)}, storable(text)


def _choice(choices: Sequence[str], given: Json) -> str | None:
    text = fold_case(given) if isinstance(given, str) else ""
    chosen = next((choice for choice in choices if fold_case(choice) == text), None)
    if chosen is None and text.isascii() and text.isdigit() and 0 < int(text[:3]) <= len(choices):
        chosen = choices[int(text[:3]) - 1]
    return chosen


def _parse_typed_form(fields: Sequence[FormField], text: str) -> Json:
    """Parse a form that a person typed as JSON, as `name = value` lines, or as a single value."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text, object_pairs_hook=_each_once)
        except (ValueError, RecursionError) as error:
            if isinstance(error, _Misfit):
                raise
            raise _Misfit("the form is not valid JSON") from error
    if len(text) > MAX_FIELDS * MAX_TEXT_LENGTH:
        raise _Misfit(f"an answer can have at most {MAX_FIELDS * MAX_TEXT_LENGTH} characters")
    names, lines = {field.name for field in fields}, list(filter(str.strip, re.split(r"[\n;]", text)))
    matches = [_PAIR.fullmatch(line) for line in lines]
    if len(fields) == 1:
        name = fields[0].name
        is_named = bool(matches) and matches[0] is not None and matches[0][1] == name
        _each_once((name, pair[2]) for pair in matches if is_named and pair is not None and pair[1] == name)
        return {name: re.split("[=:]", text, maxsplit=1)[1] if is_named else text}
    pairs, how = list[tuple[str, str]](), "write each field on its own line, as `name = value`"
    for line, match in zip(lines, matches, strict=True):
        if match is None:
            raise _Misfit(how)
        if other := _unknown_field(names, line):
            raise _Misfit(
                f"the form has no field {_abbreviate(other)}; for a text with such words, write JSON"
            )
        starts = [start for start in _FIELD_START.finditer(line) if start[1] in names]
        if len(starts) == 1:
            pairs = [*_each_once([*pairs, (match[1], match[2])]).items()]
            continue
        ends = [*(start.start() for start in starts[1:]), len(line)]
        values = [line[start.end() : end].strip(" \t\r,") for start, end in zip(starts, ends, strict=True)]
        # "note=the amount: 5" may mean one field or two, so only plain values can share a line.
        if len({start[2] for start in starts}) > 1 or any(len(value.split()) > 1 for value in values):
            raise _Misfit(how)
        shared = zip((start[1] for start in starts), values, strict=True)
        pairs = [*_each_once([*pairs, *shared]).items()]
    if not pairs:
        raise _Misfit(how)
    return dict(pairs)


def _unknown_field(names: Collection[str], line: str) -> str | None:
    """Return a word in a typed line that looks like an unknown field name, or None."""
    starts = list(_FIELD_START.finditer(line))
    ends = [start.start() for start in starts[1:]]
    values = [line[start.end() : end] for start, end in zip(starts, [*ends, len(line)], strict=True)]
    are_words = all(len(value.split()) < 2 for value in values)
    unknown = ((place, start) for place, start in enumerate(starts) if start[1] not in names)
    for place, start in islice(unknown, _MAX_COMPARED):
        first, before = starts[0], line[: start.start()].rstrip()
        is_alike = (start[2], not start[3]) == (first[2], not first[3])
        follows = place > 0 and values[place - 1].strip() and (are_words or before.endswith(","))
        known = [name.casefold() for name in names]
        if place == 0 or (is_alike and follows) or get_close_matches(start[1].casefold(), known, cutoff=0.8):
            return start[1]
    return None


def _each_once(pairs: Iterable[tuple[str, Json]]) -> dict[str, Json]:
    values = dict[str, Json]()
    for name, value in pairs:
        if name in values:
            raise _Misfit(f"the form has the field {_abbreviate(name)} twice")
        values[name] = value
    return values


def _value(field: FormField, given: Json) -> Json:
    value = given.strip() if isinstance(given, str) else given
    size = 0.0
    if field.choices:
        value = _choice(field.choices, value)
    elif field.type == "boolean":
        if isinstance(value, str):
            value = _YES_NO.get(value.casefold(), plain_yes_no(value))
        value = value if isinstance(value, bool) else None
    elif field.type == "string":
        value = storable(value) if isinstance(value, str) else None
        _check_text(field.name, value or "")
        size = len(value or "")
    else:
        value = _number(value, is_integer=field.type == "integer")
        size = value or 0.0
    if value is None:
        raise _Misfit(f"{_abbreviate(given)} is not a valid value for the field {field.described}")
    if field.choices or field.type == "boolean":
        return value
    if (field.least is not None and size < field.least) or (field.most is not None and size > field.most):
        bounds = "" if field.least is None else f"at least {field.least:g}"
        if field.most is not None:
            bounds = f"between {field.least:g} and {field.most:g}" if bounds else f"at most {field.most:g}"
        has = "have" if field.type == "string" else "be"
        raise _Misfit(f"{field.name} must {has} {bounds}{' characters' if field.type == 'string' else ''}")
    return value


def _number(given: Json, *, is_integer: bool) -> float | int | None:
    try:
        number = float(given) if isinstance(given, str | int | float) else float("nan")
    except (ValueError, OverflowError):
        return None
    if isinstance(given, bool) or not isfinite(number):
        return None
    if number.is_integer() and abs(number) < 2**53:
        return int(number)
    return None if is_integer else number


def _check_text(what: str, text: str) -> None:
    if "\0" in text:
        raise _Misfit(f"{what} contains a NUL character")
    if len(text) > MAX_TEXT_LENGTH:
        raise _Misfit(f"{what} can have at most {MAX_TEXT_LENGTH} characters")


def _abbreviate(given: object) -> str:
    text = json.dumps(given, ensure_ascii=False, default=str)
    return one_line(text if len(text) <= _MAX_SHOWN_LENGTH else f"{text[:_MAX_SHOWN_LENGTH]}…")


def asked_for(
    *,
    choices: Sequence[str] = (),
    wants_text: bool = False,
    wants_file: bool = False,
    form: Mapping[str, Any] | None = None,
    action: str = "",
    default: Json = None,
) -> Asked:
    """Return the kind of question that the arguments of a call describe.

    Raises:
        InvalidArgument: The arguments do not describe a valid kind of question.
    """
    kinds = (len(choices) > 0) + wants_text + wants_file + (form is not None)
    if kinds > 1:
        raise InvalidArgument(
            "a question takes only one kind of answer", remedy="pass only one of choices, text, file and form"
        )
    if action and kinds:
        raise InvalidArgument(
            "a question with an action must be answered with yes or no, because a yes permits the action",
            value=action[:_MAX_SHOWN_LENGTH],
            remedy="to ask for a yes or no, leave out choices, text, file and form; to ask for another "
            "answer, leave out action",
        )
    if wants_file and default is not None:
        raise InvalidArgument(
            "a question that takes a file cannot have a default",
            value=_abbreviate(default),
            remedy="leave out default, or use on_timeout 'cancel'",
        )
    kind, fields = QuestionKind.YES_NO, tuple[FormField, ...]()
    if choices:
        kind = QuestionKind.CHOICE
        _refuse_choices("choices", choices)
    elif form is not None:
        kind, fields = QuestionKind.FORM, form_fields(form)
    elif wants_text:
        kind = QuestionKind.TEXT
    elif wants_file:
        kind = QuestionKind.FILE
    wanted = Asked(kind=kind, choices=tuple(choices), fields=fields, action=action)
    if default is None:
        return wanted
    if kind is QuestionKind.YES_NO:
        raise InvalidArgument(
            "a yes or no question cannot have a default: silence is never a yes",
            value=_abbreviate(default),
            remedy="leave out default, and use on_timeout 'no' or 'cancel'",
        )
    try:
        result, _ = _read(wanted, default)
    except _Misfit as error:
        raise InvalidArgument(
            f"default is not a valid answer to the question: {error}",
            value=_abbreviate(default),
            remedy=f"as the default, pass {wanted.takes}",
        ) from error
    values = result["values"] if kind is QuestionKind.FORM else result
    offered = {"choice": tuple(choices)} | {field.name: field.choices for field in fields}
    for name, value in values.items() if isinstance(values, dict) else ():
        if value is True or (isinstance(value, str) and approves(value, among=offered.get(name, ()))):
            raise InvalidArgument(
                f"default approves with {_abbreviate(value)}: silence is never a yes",
                value=_abbreviate(default),
                remedy="pass a default that approves nothing, or use on_timeout 'cancel'",
            )
    return Asked(kind=kind, choices=tuple(choices), fields=fields, action=action, default=default)


def _refuse_choices(name: str, choices: Sequence[object]) -> None:
    words = [
        choice
        for choice in choices
        if isinstance(choice, str) and choice.strip() == choice == one_line(choice) and choice
    ]
    if len(words) < len(choices) or any(len(word) > MAX_CHOICE_LENGTH for word in words):
        raise InvalidArgument(
            f"each of {name} must be one line of 1 to {MAX_CHOICE_LENGTH} characters",
            value=name,
            remedy="shorten them, and remove line breaks and surrounding spaces",
        )
    if not 1 < len(words) <= MAX_CHOICES:
        raise InvalidArgument(
            f"{name} must be 2 to {MAX_CHOICES}, not {len(words)}",
            value=len(words),
            remedy="add or remove some",
        )
    folded = [fold_case(word) for word in words]
    twice = [word for place, word in enumerate(words) if folded[place] in folded[:place]]
    if twice:
        raise InvalidArgument(
            f"{name} contain {_abbreviate(twice[0])} twice", value=twice[0], remedy="list each choice once"
        )


def form_fields(schema: Mapping[str, Any]) -> tuple[FormField, ...]:
    """Convert a flat JSON schema, as in MCP elicitation, to the fields of a form.

    Raises:
        InvalidArgument: The schema contains something else.
    """
    _refuse_other_keys("the form", schema, _SCHEMA_KEYS)
    properties, required = schema.get("properties"), schema.get("required", [])
    if schema.get("type", "object") != "object" or not isinstance(properties, dict):
        raise _not_flat("its type must be object, with properties")
    if schema.get("additionalProperties", False) is not False:
        raise _not_flat("additionalProperties must be false or left out")
    if not 0 < len(properties) <= MAX_FIELDS:
        raise _not_flat(f"it must have 1 to {MAX_FIELDS} properties")
    if not isinstance(required, list) or any(name not in list(properties) for name in required):
        raise _not_flat("required must be a list of property names")
    return tuple(
        _field(name, definition, is_required=name in required) for name, definition in properties.items()
    )


def _refuse_other_keys(what: str, told: Mapping[str, Any], known: Sequence[str]) -> None:
    if unknown := [name for name in told if name not in known]:
        raise _not_flat(f"{what} cannot have {_abbreviate(unknown[0])}, only {', '.join(known)}")


def _field(name: str, told: object, *, is_required: bool) -> FormField:
    if not _FIELD_NAME.fullmatch(name):
        raise _not_flat(
            f"{_abbreviate(name)} is not a valid field name: use up to 64 letters, digits, _ . and -"
        )
    if not isinstance(told, dict):
        raise _not_flat(f"the field {name} must be an object")
    of_type = told.get("type", "string")
    if of_type not in ("string", "number", "integer", "boolean"):
        raise _not_flat(f"the field {name} must be a string, number, integer or boolean")
    limits = {"string": _STRING_KEYS, "boolean": ()}.get(of_type, _NUMBER_KEYS)
    choices = _read_choices(name, told) if of_type == "string" else ()
    keys = next(((name,) for name in ("oneOf", "enum") if name in told and of_type == "string"), limits)
    _refuse_other_keys(f"the field {name}", told, (*_FIELD_KEYS, *keys))
    titles = [told.get("title", ""), told.get("description", "")]
    if not all(isinstance(title, str) for title in titles):
        raise _not_flat(f"the title and description of {name} must be strings")
    least, most = [told.get(limit) for limit in limits] or (None, None)
    if any(isinstance(limit, bool) or not isinstance(limit, int | float | None) for limit in (least, most)):
        raise _not_flat(f"the limits of {name} must be numbers")
    if least is not None and most is not None and least > most:
        raise _not_flat(f"no value of {name} is within its limits")
    return FormField(
        name=name,
        type=of_type,
        title=one_line(": ".join(filter(None, titles)))[:200],
        choices=choices,
        is_required=is_required,
        least=least,
        most=most,
    )


def _read_choices(name: str, told: Mapping[str, Any]) -> tuple[str, ...]:
    choices = told.get("oneOf", told.get("enum"))
    if choices is None:
        return ()
    if not isinstance(choices, list):
        raise _not_flat(f"the values of {name} must be a list of strings")
    if "oneOf" in told:
        for choice in choices:
            if not isinstance(choice, dict) or choice.get("title", choice.get("const")) != choice.get(
                "const"
            ):
                raise _not_flat(
                    f"each choice of {name} must have a const; its title, if any, must equal the const"
                )
            _refuse_other_keys(f"each choice of {name}", choice, ("const", "title"))
        choices = [choice.get("const") for choice in choices]
    _refuse_choices(f"the values of {name}", choices)
    return tuple(choices)


def _not_flat(why: str) -> InvalidArgument:
    return InvalidArgument(
        f"the form is not a flat JSON schema: {why}",
        remedy='use a schema such as {"type": "object", "properties": {"amount": {"type": "number"}}}',
    )


def schema_of(asked: Asked) -> dict[str, Any]:
    """Return the JSON schema of a question's answers, in a form that MCP elicitation accepts."""
    if asked.kind is not QuestionKind.FORM:
        value: dict[str, Any] = {"type": "string", "title": "Answer"}
        if asked.in_words:
            value["description"] = asked.takes
        elif asked.kind is QuestionKind.YES_NO:
            value["enum"] = ["yes", "no"]
        elif asked.kind is QuestionKind.CHOICE:
            value["enum"] = list(asked.choices)
        return {"type": "object", "properties": {"answer": value}, "required": ["answer"]}
    properties: dict[str, Any] = {}
    for field in asked.fields:
        schema: dict[str, Any] = {"type": field.type} | ({"title": field.title} if field.title else {})
        if field.choices:
            schema["enum"] = list(field.choices)
        low, high = ("minLength", "maxLength") if field.type == "string" else ("minimum", "maximum")
        for key, limit in ((low, field.least), (high, field.most)):
            if limit is not None:
                schema[key] = int(limit) if float(limit).is_integer() else limit
        properties[field.name] = schema
    required = [field.name for field in asked.fields if field.is_required]
    return {"type": "object", "properties": properties, "required": required}
