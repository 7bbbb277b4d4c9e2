"""Recognizes yes and no as people write them, and checks names; quick to import for commands."""

import re
from collections.abc import Iterable
from typing import Final
from unicodedata import normalize

from postroom.contracts.errors import InvalidArgument
from postroom.contracts.quoting import one_line, quoted

HUMAN: Final = "human:"
"""The prefix of the address of a person."""
MAX_NAME_LENGTH: Final = 64
"""Maximum number of characters in the name of a person who answers."""
_NOT_PEOPLE: Final = ("postroom", "system", "nobody")
"""Names that no person who answers may have."""
_LATIN: Final = str.maketrans(
    "\u0410\u0412\u0421\u0415\u041d\u0406\u0408\u041a\u041c\u041e\u0420\u0405\u0422\u0425\u0423\u051a\u051c"
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455"
    "\u0501\u04cf\u04bb\u051b\u051d"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7"
    "\u03b1\u03b9\u03ba\u03bd\u03bf\u03c1\u03c5\u03c7\u03b3",
    "ABCEHIJKMOPSTXYQWaeopcyxijsdlhqwABEZHIKMNOPTYXaikvopuxy",
)
"""Replaces the Cyrillic and Greek characters that look like Latin ones."""
_SIGNS: Final = re.compile(r"(?<!\d)[._-]+|[._-]+(?!\d)")
_PLAIN: Final = re.compile(
    r"(?:(?P<yes>yes)(?:,? (?:please|thanks|thank you))?|no(?:,? (?:thanks|thank you))?)(?:\.|!{1,3})?"
)
"""Matches a plain yes or no; "yes?", "yes..." and "yes, but" do not match, because they may be limited."""


_APPROVES: Final = re.compile(
    r"[\W_]*(?:(?:yes|yeah|yep|yup|ok|okay|sure|approved?|allow(?:ed)?|accept(?:ed)?|confirm(?:ed)?|agreed?"
    r"|proceed|granted|permitted|go ahead|go for it|do it|of course|absolutely|certainly)(?![^\W_]).*"
    r"|(?:y|true)[\W_]*)"
)
"""Matches an English word of approval, also in quotation marks or Markdown."""


def unanswered(approved: bool | None, what: str = "") -> str:
    """Return the words for a question that nobody answered in time, so its agent got the default or a no."""
    means = {True: ", which means yes", False: ", which means no"}.get(approved, "")  # type: ignore[arg-type]
    return f"Nobody answered{what}{means}"


def approves(text: str, *, among: Iterable[str] = ()) -> bool:
    """Return whether a text begins with a word of approval.

    The choice `y` is no approval if the choices are single characters such as x, y and z.
    """
    choices = [fold_case(choice) for choice in among]
    are_single = bool(choices) and all(len(choice) == 1 and choice != "n" for choice in choices)
    return not are_single and _APPROVES.fullmatch(fold_case(text)) is not None


def plain_yes_no(text: str) -> bool | None:
    """Return True for a plain yes ("Yes."), False for a plain no ("No, thanks!"), or else None."""
    plain = _PLAIN.fullmatch(fold_case(text))
    return None if plain is None else plain["yes"] is not None


def person_name(written: str) -> str:
    """Return the name in a person's name or address `human:name`."""
    name = written.strip()
    return name[len(HUMAN) :].strip() if name.casefold().startswith(HUMAN) else name


def check_person_name(name: str, *, asker: str = "") -> str:
    """Return the name of a person who answers a question, without `human:`.

    `asker` is the agent that asks the question.

    Raises:
        InvalidArgument: The name is too long, contains a control character or another hidden character, looks
            like the name of the server or of `asker`, or consists only of `human:`.
    """
    plain = person_name(name)
    if name.strip() and not plain:
        raise InvalidArgument(
            f"{quoted(name.strip())} contains no name", value=name, remedy="pass your name: kim, or human:kim"
        )
    if len(plain) > MAX_NAME_LENGTH or one_line(plain) != plain:
        has = (
            f"is longer than {MAX_NAME_LENGTH}"
            if len(plain) > MAX_NAME_LENGTH
            else "contains hidden or control"
        )
        raise InvalidArgument(
            f"the name {quoted(plain)} {has} characters",
            value=one_line(plain[:MAX_NAME_LENGTH]),
            remedy=f"pass your name in 1 to {MAX_NAME_LENGTH} visible characters on one line",
        )
    bare = normalize("NFKC", plain).partition("@")[0].strip()
    if bare and look_alike(bare, filter(None, (*_NOT_PEOPLE, asker))):
        raise InvalidArgument(
            f"{quoted(plain)} is a name of the server or of the agent that asks, not of a person",
            value=plain,
            remedy="pass your own name",
        )
    return plain


def look_alike(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that looks like `name`, or None.

    Names look alike if they differ only in case, punctuation, 0 for o, 1 for l, or similar Cyrillic or Greek
    characters.
    """
    key = _without_signs(name)
    return next((other for other in known if _without_signs(other) == key), None)


def _without_signs(name: str) -> str:
    return _SIGNS.sub("", name.translate(_LATIN).casefold()).replace("0", "o").replace("1", "l")


def fold_case(text: str) -> str:
    """Return a text in a form for comparisons, without differences in case, spacing or Unicode encoding."""
    return " ".join(normalize("NFKC", text).casefold().split())
