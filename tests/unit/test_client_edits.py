"""How postroom's part is put into a text and removed: refusals, and people's changes that survive."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from postroom.app.clients import json_edit, toml_edit
from postroom.app.clients.config_edits import AppliedEdit, ConfigEdit
from postroom.app.clients.toml_edit import NotToml
from postroom.jsonc import DEEPEST, NotJson, read

ENTRY = {"command": "postroom", "args": ["mcp"]}
SERVER = ConfigEdit(path=("mcpServers",), key="postroom", value=ENTRY)
SIGN = "postroom hook claude Stop"
HOOK = ConfigEdit(
    path=("hooks", "Stop"), value={"hooks": [{"type": "command", "command": SIGN, "timeout": 10}]}, sign=SIGN
)
TABLE = ConfigEdit(path=("mcp_servers",), key="postroom", value=ENTRY)


def value(text: str) -> object:
    found = read(text)
    return None if found is None else found.value()


@contextmanager
def counted() -> Iterator[list[str]]:
    """Count the calls of our functions."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def test_what_an_edit_does_not_look_into_costs_no_steps_of_ours() -> None:
    found = []
    for size in (10, 10_000):
        kept = {"projects": {f"/p{one}": {"history": [{"display": "x"}, one]} for one in range(size)}}
        with counted() as calls:
            changed, _ = json_edit.put(json.dumps(kept, indent=2), SERVER, "claude")
        assert json.loads(changed) == {**kept, "mcpServers": {"postroom": ENTRY}}
        found.append(len([one for one in calls if one in ("value", "skip", "_child", "_string")]))
    assert found[0] == found[1]


def test_what_was_not_looked_into_means_the_same_when_it_is(subtests: pytest.Subtests) -> None:
    for inner in [
        '{"a": [1, {"b": "\\u00e9\\n"}], "a": [2.5, null]}',
        "[ ]",
        '{"a": {"b": [{}, [], ""]} , "c":-1e3}',
        '{"a": [1, 2,], // end\n "b": {"c": /* x */ true}}',
    ]:
        with subtests.test(inner=inner):
            text = f'{{"x": {inner}}}'
            node = json_edit.find(text, ("x",))
            assert node is not None
            before = node.value()
            assert text[node.start : node.end] == inner
            looked = {child.key: child.node.value() for child in node.children}
            assert looked == before or not isinstance(before, dict)
            for child in node.children:
                assert value(text[child.node.start : child.node.end]) == child.node.value()
    for wrong in ["NaN", "Infinity", "-Infinity"]:
        with subtests.test(wrong=wrong), pytest.raises(NotJson, match="line 1"):
            read(f'{{"x": [{wrong}]}}')


def test_what_is_no_json_is_refused_with_its_line() -> None:
    for text in [
        *("{", '{"a" 1}', '{"a": 1 "b": 2}', '{"a": 1},', "{,}", "[1,,2]", '{"a": 01}', "{'a': 1}", "{a: 1}"),
        *('{"a": tru}', '{"a": "\\x"}', '{"a": "one\ntwo"}', '{"a": /* open }'),
        "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
    ]:
        with pytest.raises(NotJson, match=r"line [12]: "):
            json_edit.put(text, SERVER, "claude")


OURS = json.dumps({"ours": HOOK.value})
"""Our hook, but in an object."""


def test_something_else_where_servers_or_hooks_should_stand_is_refused() -> None:
    for text, edit, where in [
        *((text, SERVER, "the document") for text in ("[]", '"x"')),
        *((f'{{"mcpServers": {held}}}', SERVER, "mcpServers") for held in ("null", "[]")),
        *((f'{{"hooks": {{"Stop": {held}}}}}', HOOK, r"hooks\.Stop") for held in ("{}", "null", '"x"', OURS)),
    ]:
        with pytest.raises(NotJson, match=where):
            json_edit.put(text, edit, "claude")


def test_an_entry_that_was_there_is_given_back_as_it_was_written() -> None:
    text = '{"mcpServers": {"postroom": {"url": "http://old",\n "headers": {} , "timeout": 5}}}'
    changed, [applied] = json_edit.put(text, SERVER, "claude")
    assert applied.kind == "replaced"
    assert json.loads(changed)["mcpServers"]["postroom"] == {"timeout": 5, **ENTRY}
    assert json_edit.take(changed, applied) == (text, False)


def test_in_a_group_with_a_hook_of_somebody_else_only_ours_is_cut_or_mended() -> None:
    theirs = {"type": "command", "command": "say done"}
    changed, applied_edits = json_edit.put("{}", HOOK, "claude")
    document = json.loads(changed)
    document["hooks"]["Stop"][0]["hooks"].append(theirs)
    edited = json.dumps(document, indent=1)
    for applied in reversed(applied_edits):
        edited, _ = json_edit.take(edited, applied)
    assert json.loads(edited) == {"hooks": {"Stop": [{"hooks": [theirs]}]}}
    mixed = json.dumps({"hooks": {"Stop": [{"matcher": "x", "hooks": [theirs, {"command": SIGN}]}]}})
    again, [applied] = json_edit.put(mixed, HOOK, "claude")
    [group] = json.loads(again)["hooks"]["Stop"]
    assert group["hooks"] == [*HOOK.value["hooks"], theirs]  # type: ignore[index]  # it is a group
    assert json_edit.take(again, applied) == (mixed, False)


def test_toml_that_cannot_hold_our_table_is_refused() -> None:
    other_form = '[mcp_servers]\npostroom = {command = "other"}\n'
    tables = ('mcp_servers = {x = {command = "y"}}\n', 'mcp_servers = "none"\n', other_form)
    for text in ("a = ", "[a", "a = 1\na = 2\n", "\x00", *tables):
        with pytest.raises(NotToml, match="form that setup writes" if text is other_form else None):
            toml_edit.put(text, TABLE, "codex")
    ours = AppliedEdit(client="codex", kind="table", path=("mcp_servers", "postroom"))
    with pytest.raises(NotToml, match="form that setup writes"):
        toml_edit.take(other_form, ours)


def test_a_table_that_was_there_is_mended_and_given_back(subtests: pytest.Subtests) -> None:
    for head in [
        "[mcp_servers.postroom]",
        '[ mcp_servers . "postroom" ] # ours',
        "\t[mcp_servers.'postroom']",
    ]:
        with subtests.test(head=head):
            text = f'a = 1\n{head}\nurl = "http://old"\nstartup_timeout_sec = 20\n\n# next\n[tui]\nx = 1\n'
            changed, [applied] = toml_edit.put(text, TABLE, "codex")
            assert toml_edit.find(changed, ("mcp_servers", "postroom")) == {
                **ENTRY,
                "startup_timeout_sec": 20,
            }
            assert toml_edit.take(changed, applied) == (text, False)


def test_tables_that_a_client_added_below_ours_go_with_it() -> None:
    changed, [applied] = toml_edit.put("a = 1\n", TABLE, "codex")
    changed += '\n[mcp_servers.postroom.tools.health_check]\napproval_mode = "approve"\n\n[tui]\nx = 1\n'
    left, _ = toml_edit.take(changed, applied)
    assert "postroom" not in left
    assert toml_edit.find(left, ("tui",)) == {"x": 1}


def test_texts_of_many_lines_are_no_headers() -> None:
    note = 'note = """\n[mcp_servers.postroom]\nurl = 1\n"""\n'
    for text, begin in (
        ("note = '''\n[mcp_servers.postroom]\n'''\n# \"\"\" [mcp_servers.postroom]\nb = \"#\"\n", ""),
        (f'{note}[mcp_servers.postroom]\nurl = "http://old"\n', note),
    ):
        changed, [applied] = toml_edit.put(text, TABLE, "codex")
        assert changed.startswith(begin or text)
        assert toml_edit.find(changed, ("mcp_servers", "postroom")) == ENTRY
        assert toml_edit.take(changed, applied) == (text, False)


def test_a_change_of_more_than_our_table_is_never_accepted(subtests: pytest.Subtests) -> None:
    for after in ["a = 2\n", "", "a = 1\nb = 1\n", "a = 1\n[mcp_servers.other]\n", "a = "]:
        with subtests.test(after=after), pytest.raises(NotToml):
            toml_edit._require_same(after, "a = 1\n[mcp_servers.postroom]\nx = 1\n", (*TABLE.path, TABLE.key))
