"""For any content of a client's file, setup adds only postroom's part, and remove restores the file."""

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from postroom.app.clients import json_edit, toml_edit
from postroom.app.clients.config_edits import AppliedEdit, ConfigEdit
from postroom.jsonc import read

pytestmark = pytest.mark.long

ENTRY = {"command": "postroom", "args": ["mcp"]}
HOOK = {"hooks": [{"type": "command", "command": "postroom hook claude Stop", "timeout": 10}]}
EDITS = (
    ConfigEdit(path=("mcpServers",), key="postroom", value=ENTRY),
    ConfigEdit(path=("hooks", "Stop"), value=HOOK, sign="postroom hook claude Stop"),
    ConfigEdit(path=("hooks", "SessionEnd"), value=HOOK, sign="postroom hook claude Stop"),
)
KEYS = st.sampled_from(["a", "b\\u00e9", "mcpServers", "hooks", "Stop", "url", "ключ", 'q\\"q', "//", ""])
PLAIN = st.sampled_from(
    ["1", "-2.5e3", "true", "null", '"x"', '"http://h/*p*/"', '"a,]}"', '"\\\\"', '"ü\\n"']
)
BLANKS = st.sampled_from(
    [
        "",
        "",
        " ",
        "\n",
        "\n  ",
        "\n\t",
        "\r\n    ",
        " // note\n",
        "/* a, } */",
        '\n  // "b": {\n  ',
        " /**/ \n",
    ]
)


@st.composite
def documents(draw: st.DrawFn, depth: int = 3) -> str:
    kind = draw(st.sampled_from(["object", "array", "plain"])) if depth < 3 else "object"
    if kind == "plain" or depth == 0:
        return draw(PLAIN)
    opening, closing = "{}" if kind == "object" else "[]"
    parts = []
    for _ in range(draw(st.integers(0, 3))):
        key = f'"{draw(KEYS)}"{draw(BLANKS)}:{draw(BLANKS)}' if kind == "object" else ""
        parts.append(f"{draw(BLANKS)}{key}{draw(documents(depth=depth - 1))}{draw(BLANKS)}")
    trailing = "," + draw(BLANKS) if parts and draw(st.booleans()) else draw(BLANKS)
    return opening + ",".join(parts) + trailing + closing


@st.composite
def files(draw: st.DrawFn) -> str:
    """Return a file in which the containers of postroom's part, if they exist, are containers."""
    text = draw(st.sampled_from(["", "\ufeff"])) + draw(BLANKS).lstrip("x")
    text += draw(documents()) if draw(st.integers(0, 9)) else ""
    text += draw(BLANKS)
    document = read(text)
    found = document.value() if document else {}
    assert isinstance(found, dict)
    assume(isinstance(found.get("mcpServers", {}), dict))
    assume(isinstance(found.get("hooks", {}), dict))
    for event in ("Stop", "SessionEnd"):
        assume(isinstance(found.get("hooks", {}).get(event, []), list))
    return text


def put_all(text: str) -> tuple[str, list[AppliedEdit]]:
    applied_edits: list[AppliedEdit] = []
    for edit in EDITS:
        text, made = json_edit.put(text, edit, "claude")
        applied_edits += made
    return text, applied_edits


def take_all(text: str, applied_edits: list[AppliedEdit]) -> str:
    for applied in reversed(applied_edits):
        text, _ = json_edit.take(text, applied)
    return text


def value(text: str) -> object:
    document = read(text)
    return None if document is None else document.value()


@settings(max_examples=400)
@given(files())
def test_remove_after_setup_is_the_identity(text: str) -> None:
    changed, applied_edits = put_all(text)
    assert take_all(changed, applied_edits) == text
    again, more = put_all(changed)
    assert (again, more) == (changed, [])


@settings(max_examples=400)
@given(files())
def test_setup_adds_our_part_and_nothing_else(text: str) -> None:
    changed, _ = put_all(text)
    found = value(changed)
    wanted = value(text) or {}
    assert isinstance(found, dict)
    assert isinstance(wanted, dict)
    wanted.setdefault("mcpServers", {})["postroom"] = ENTRY
    hooks = wanted.setdefault("hooks", {})
    for event in ("Stop", "SessionEnd"):
        hooks.setdefault(event, []).append(HOOK)
    assert found == wanted
    assert is_subsequence(text, changed)


def is_subsequence(short: str, long: str) -> bool:
    rest = iter(long)
    return all(one in rest for one in short)


@settings(max_examples=300)
@given(files(), st.sampled_from(["first", "last"]), st.sampled_from(["mcpServers", ""]))
def test_what_a_person_adds_in_between_stays(text: str, where: str, within: str) -> None:
    """The person's member is written by hand into the text, before or after the existing content."""
    changed, applied_edits = put_all(text)
    edited = with_member(changed, within, where)
    left = take_all(edited, applied_edits)
    wanted = value(text) or {}
    assert isinstance(wanted, dict)
    (wanted.setdefault(within, {}) if within else wanted)["theirs"] = [1]
    assert value(left) == wanted


def with_member(text: str, within: str, where: str) -> str:
    holder = json_edit.find(text, (within,) if within else ())
    assert holder is not None
    member = json.dumps("theirs") + ": [1]"
    if where == "first":
        return f"{text[: holder.start + 1]}{member}, {text[holder.start + 1 :]}"
    last = holder.children[-1]
    comma = "," if last.comma is None else ""
    at = last.end if last.comma is None else last.comma + 1
    return f"{text[:at]}{comma} {member}{',' if last.comma is not None else ''}{text[at:]}"


TABLE = ConfigEdit(path=("mcp_servers",), key="postroom", value=ENTRY)
PIECES = st.sampled_from(
    [
        "# [mcp_servers.postroom]\n",
        "\n",
        "   \n",
        'note{n} = """\n[mcp_servers.postroom]\n"""\n',
        "note{n} = '''\n[x]\n\"\"\" '''\n",
        'quoted{n} = "# \\" [a]"\n',
        "list{n} = [\n  [1, 2],\n  [3],\n]\n",
        "[table{n}]\n",
        "\t[table{n}.deep]\n",
        "[[many{n}]]\n",
        '[mcp_servers.harbour{n}]\ncommand = "x"\n',
        '[mcp_servers."post room{n}"]\n',
        "key{n} = 1 # note\n",
    ]
)


@st.composite
def toml_files(draw: st.DrawFn) -> str:
    pieces = draw(st.lists(PIECES, max_size=7))
    text = "".join(piece.replace("{n}", str(at)) for at, piece in enumerate(pieces))
    text = text.removesuffix("\n") if draw(st.booleans()) else text
    text = text.replace("\n", "\r\n") if draw(st.booleans()) else text
    return draw(st.sampled_from(["", "\ufeff"])) + text


@settings(max_examples=300)
@given(toml_files(), st.sampled_from(["", "\n[added]\nx = 1\n", "[added]\n", "# the end"]))
def test_the_same_holds_for_toml(text: str, added: str) -> None:
    changed, [applied] = toml_edit.put(text, TABLE, "codex")
    assert toml_edit.find(changed, ("mcp_servers", "postroom")) == ENTRY
    assert changed.startswith(text)
    assert toml_edit.put(changed, TABLE, "codex") == (changed, [])
    left, stays = toml_edit.take(changed + added, applied)
    assert not stays
    assert left == text + added or (added and left.startswith(text) and left.endswith(added))
