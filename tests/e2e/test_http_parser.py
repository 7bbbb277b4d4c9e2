"""The requests that the parser accepts and refuses, on raw connections to a running server: limits hold, and an unclear
request ends the connection.
"""

import re
import socket
import threading
import time
from contextlib import suppress

import pytest

from e2e.running import PATIENCE, RunningServer
from postroom.app.connection import MAX_BEHIND, MAX_HEAD_LENGTH

HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET /healthz HTTP/1.1\r\n" + HOST
POST = b"POST /login HTTP/1.1\r\n" + HOST
LAST = GET + b"Connection: close\r\n\r\n"
PIECE = 1_000


def answered(server: RunningServer, *pieces: bytes) -> bytes:
    """Send pieces, each as a separate write, and return all data until the server ends the connection.

    Raises:
        TimeoutError: the server keeps the connection open.
    """
    received = b""
    with socket.create_connection(server.address, timeout=PATIENCE) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(ConnectionError):  # closed while we were still writing
            for piece in pieces:
                line.sendall(piece)
        with suppress(ConnectionError):
            while more := line.recv(65_536):
                received += more
    return received


def statuses(received: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


def head(size: int) -> bytes:
    """Return a request whose head has this many bytes, so that an answer to it ends the connection."""
    begun = GET + b"Connection: close\r\nX-Long: "
    return begun + b"a" * (size - len(begun) - 4) + b"\r\n\r\n"


def in_pieces(whole: bytes) -> list[bytes]:
    return [whole[start : start + PIECE] for start in range(0, len(whole), PIECE)]


def test_a_head_has_a_limit_whole_or_in_pieces_and_no_part_of_it_goes_round(server: RunningServer) -> None:
    for size in (200, 60_000, MAX_HEAD_LENGTH - 1):
        assert statuses(answered(server, head(size))) == [200]
        assert statuses(answered(server, *in_pieces(head(size)))) == [200]
    too_long = [head(MAX_HEAD_LENGTH + 1), head(70_000), head(300_000)]
    for part in (
        GET + b"X-Short: a\r\n" * 7_000 + b"\r\n",
        GET + b"X-Spaces:" + b" " * 70_000 + b"a\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        b"\r\n" * 40_000,
        *too_long,
    ):
        assert statuses(answered(server, part)) in ([400], []), part[:40]  # none: reset while we still wrote
    for part in too_long:
        assert statuses(answered(server, *in_pieces(part))) in ([400], []), len(part)


def test_a_head_behind_another_request_has_the_same_limit(server: RunningServer) -> None:
    """The first request is answered; a request after it is refused, whether in one write or in two."""
    first = GET + b"\r\n"
    assert statuses(answered(server, first + head(70_000))) in ([200], [])
    assert statuses(answered(server, first + head(60_000))) == [200, 200]
    body = POST + b"Content-Length: 4\r\n\r\nabcd"
    assert statuses(answered(server, body + head(70_000))) in ([415], [])


def test_what_stands_between_the_pieces_of_a_body_has_the_same_limit(server: RunningServer) -> None:
    begun = POST + b"Content-Type: application/x-www-form-urlencoded\r\nTransfer-Encoding: chunked\r\n\r\n"
    for part in (b"4;" + b"a" * 100_000, b"4\r\nabcd\r\n0\r\nX-Trailer: " + b"a" * 100_000):
        assert statuses(answered(server, begun, *in_pieces(part))) in ([400], [])


def test_a_header_behind_a_body_proves_nothing(server: RunningServer) -> None:
    begun = b"POST /admin/backup HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    proof = b"Authorization: Bearer " + server.token.encode() + b"\r\n\r\n"
    assert statuses(answered(server, begun + b"2\r\n{}\r\n0\r\n" + proof + LAST)) == [401, 200]


TWO_WAYS = (
    POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    POST + b"Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd",
    POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
    POST + b"Content-Length: 4, 4\r\n\r\nabcd",
    POST + b"Content-Length: +4\r\n\r\nabcd",
    POST + b"Content-Length: 0x4\r\n\r\nabcd",
    POST + b"Content-Length: -4\r\n\r\nabcd",
    POST + b"Transfer-Encoding: gzip\r\n\r\n",
    POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\n0x4\r\nabcd\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\n4\nabcd\n0\n\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\n4\r\nabcde\r\n0\r\n\r\n",
    GET + b"X-Fold: a\r\n b\r\n\r\n",
    GET + b"X-Line: a\nX-Other: b\r\n\r\n",
    GET + b"X-Line: a\rX-Other: b\r\n\r\n",
    GET.replace(b"\r\n", b"\n") + b"\n",
    GET + b"X-Nul: a\0b\r\n\r\n",
    GET + b"X-Nul\0: a\r\n\r\n",
    GET + b"X-Control: a\x01b\r\n\r\n",
    GET + b"X-Space : a\r\n\r\n",
    GET + b"no colon\r\n\r\n",
    GET + b": no name\r\n\r\n",
    b"GET /health\0z HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /h\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET http://127.0.0.1/healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET http://evil.invalid/healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /healthz#a HTTP/1.1\r\n" + HOST + b"\r\n",
    b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n",
    b"CONNECT evil.invalid:443 HTTP/1.1\r\n" + HOST + b"\r\n",
    b"FOO /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /healthz HTTP/2.0\r\n" + HOST + b"\r\n",
    b"GET /healthz HTTP/1.7\r\n" + HOST + b"\r\n",
    b"GET /healthz HTTP/0.9\r\n" + HOST + b"\r\n",
    b"GET /healthz\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
    GET + b"Host: evil.invalid\r\n\r\n",
    GET + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
    GET + b"Origin: http://127.0.0.1\r\nOrigin: http://evil.invalid\r\n\r\n",
    GET + b"Idempotency-Key: a\r\nIdempotency-Key: b\r\n\r\n",
    b"GET /health%z HTTP/1.1\r\n" + HOST + b"\r\n",
)


def test_what_can_be_read_in_two_ways_is_refused_and_the_connection_closed(server: RunningServer) -> None:
    found = {raw: statuses(answered(server, raw + LAST)) for raw in TWO_WAYS}
    assert {raw: got for raw, got in found.items() if got != [400]} == {}


def test_a_request_is_answered_before_the_connection_closes_on_what_came_behind_it(
    server: RunningServer,
) -> None:
    assert statuses(answered(server, GET + b"\r\n" + b"no HTTP at all\r\n\r\n" + LAST)) == [200]


def test_an_upgrade_is_answered_as_if_it_had_not_been_asked_for(server: RunningServer) -> None:
    login = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 7\r\n\r\ntoken=x"
    for upgrade in (b"websocket", b"h2c"):
        asked = b"Connection: Upgrade\r\nUpgrade: " + upgrade + b"\r\n"
        assert statuses(answered(server, GET + asked + b"\r\n" + b"\0\1\2")) == [200]
        assert statuses(answered(server, POST + asked + login)) == [401]


def test_requests_in_one_write_are_answered_in_their_order(server: RunningServer) -> None:
    one, other = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n", b"GET /readyz HTTP/1.1\r\n" + HOST + b"\r\n"
    received = answered(server, (one + other) * 3 + LAST)
    assert statuses(received) == [200] * 7
    assert received.find(b'"ok"') < received.find(b'"ready"')


def test_of_too_many_requests_at_once_the_first_are_answered_and_no_other(server: RunningServer) -> None:
    many = (GET + b"\r\n") * (MAX_BEHIND + 100)
    assert statuses(answered(server, many)) == [200] * (MAX_BEHIND + 1)


def test_a_client_that_sends_far_too_much_at_once_sees_the_refusal(server: RunningServer) -> None:
    size = 20_000_000
    whole = bytes(size)
    for path, is_chunked, status in (
        (b"/login", False, 413),
        (b"/login", True, 415),
        (b"/mcp", False, 401),
        (b"/mcp", True, 401),
    ):
        length = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % size
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (size, whole) if is_chunked else whole
        begun = b"POST %s HTTP/1.1\r\n%sConnection: close\r\n%s\r\n\r\n" % (path, HOST, length)
        assert statuses(answered(server, begun, body)) == [status], (path, is_chunked)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_caller_without_a_token_is_refused_at_once_and_its_body_is_not_read(
    server: RunningServer, is_chunked: bool
) -> None:
    piece, pieces = bytes(100_000), 1_000
    length = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(piece) * pieces}"
    sent = 0
    with socket.create_connection(server.address, timeout=PATIENCE) as line:
        line.sendall(b"POST /mcp HTTP/1.1\r\n" + HOST + length.encode() + b"\r\n\r\n")
        assert statuses(line.recv(65_536)) == [401]  # before any of the body came
        began = time.monotonic()
        with suppress(ConnectionError):
            for _ in range(pieces):
                line.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if is_chunked else piece)
                sent += len(piece)
    assert sent < 20_000_000  # what the buffers of both systems hold
    assert time.monotonic() - began < PATIENCE / 2


def test_others_are_served_while_somebody_floods(server: RunningServer) -> None:
    flooding = threading.Thread(target=lambda: [answered(server, head(300_000)) for _ in range(20)])
    flooding.start()
    with server.line() as line:
        assert all(line.tool("health_check")["status"] == "ok" for _ in range(20))
    flooding.join(PATIENCE)
    assert "Traceback" not in server.log()
