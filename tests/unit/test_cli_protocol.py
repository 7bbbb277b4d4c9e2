"""How a client's line travels, compared with what the SDK's server and client expect."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.inbound import (
    NAME_BEARING_METHODS,
    InboundModernRoute,
    classify_inbound_request,
    decode_header_value,
    encode_header_value,
)

from postroom.cli.protocol import (
    READING_TOOLS,
    UnreadableLine,
    answered,
    build_id_key,
    failures,
    header_value,
    read_line,
)
from postroom.mail.operations import MAIL_OPERATIONS
from table_rows import each_row

VERSION = "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": VERSION, "io.modelcontextprotocol/clientCapabilities": {}}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_name_stands_in_a_header_as_the_sdk_writes_and_reads_it(name: str) -> None:
    assert header_value(name) == encode_header_value(name)
    assert decode_header_value(header_value(name)) == name


def test_the_sdk_s_server_accepts_the_headers_of_every_method(subtests: pytest.Subtests) -> None:
    for method in ["server/discover", "tools/list", "subscriptions/listen", *NAME_BEARING_METHODS]:
        with subtests.test(method=method):
            body = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": method,
                "params": {"_meta": META, "name": "ä b", "uri": "mail://x"},
            }
            message = read_line(json.dumps(body).encode())
            headers = {name.lower(): value for name, value in message.headers.items()}
            assert isinstance(classify_inbound_request(body, headers=headers), InboundModernRoute)


def test_a_line_of_the_older_revisions_brings_no_headers_of_its_own() -> None:
    message = read_line(b'{"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": {"name": "a"}}\r\n')
    assert (message.awaits, message.headers, message.version) == (("x",), {}, "")
    assert message.body.endswith(b"}")


def test_only_requests_want_an_answer(subtests: pytest.Subtests) -> None:
    for line, awaits in [
        (b'{"method": "notifications/x"}', ()),
        (b'{"id": 4, "result": {}}', ()),
        (b'{"id": 4, "error": {}}', ()),
        (b'{"id": null, "method": "x"}', (None,)),
        (b'[{"id": 1, "method": "x"}, {"method": "y"}, {"id": 2, "result": {}}, 7]', (1,)),
    ]:
        with subtests.test(line=line, awaits=awaits):
            assert read_line(line).awaits == awaits


@given(st.binary())
def test_any_line_is_a_message_or_is_refused_in_json(line: bytes) -> None:
    code = None
    try:
        read_line(line)
    except UnreadableLine as refused:
        code = json.loads(refused.answer)["error"]["code"]
    assert code in (None, -32700, -32600)


def test_one_and_the_text_one_are_two_ids() -> None:
    assert len({build_id_key(1), build_id_key("1"), build_id_key(True), build_id_key(1.0)}) == 4


def test_a_batch_is_failed_as_a_batch() -> None:
    batch = read_line(b'[{"id": 1, "method": "x"}, {"id": "b", "method": "y"}]')
    assert [one["id"] for one in json.loads(failures(batch, -32000, "no"))] == [1, "b"]
    single = read_line(b'{"id": 1, "method": "x"}')
    assert json.loads(failures(single, -32000, "no", {"code": "c"}))["error"]["data"] == {"code": "c"}


def test_only_results_and_errors_are_answers() -> None:
    assert answered({"id": 1, "method": "ping"}) == []
    assert answered([{"id": 1, "result": {}}, {"id": 2, "error": {}}, {"x": 1}, 3]) == [1, 2]


def test_the_tools_that_change_nothing_are_those_of_the_table() -> None:
    assert {one.name for one in MAIL_OPERATIONS if not one.changes} == READING_TOOLS


@each_row(
    "method, parameters, reads, has_key",
    [
        ("tools/call", {"name": "fetch_inbox"}, True, False),
        ("tools/call", {"name": "send_message", "arguments": {"idempotency_key": "k"}}, False, True),
        ("tools/call", {"name": "send_message", "arguments": {"idempotency_key": ""}}, False, False),
        ("tools/call", {"name": "send_message", "arguments": ["idempotency_key"]}, False, False),
        ("tools/call", {"name": ["fetch_inbox"]}, False, False),
        ("tools/call", {}, False, False),
        ("resources/read", {"uri": "mail://agents/harbour"}, True, False),
        ("resources/subscribe", {"uri": "mail://agents/harbour"}, False, False),
    ],
)
def test_a_request_says_whether_it_may_be_sent_once_more(
    method: str, parameters: dict[str, object], reads: bool, has_key: bool
) -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}).encode()
    message = read_line(line)
    assert (message.reads, message.has_key) == (reads, has_key)
