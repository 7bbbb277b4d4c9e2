"""Web Push: a question reaches only the browsers of people who asked for it, encrypted, once, and is answered there."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import httpx2
import jwt
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey

from postroom.contracts.errors import StaleClaim
from postroom.contracts.push import PUSH
from postroom.leases import Leases
from postroom.relay import Relay
from postroom.services.push import MAX_OF_PERSON, MAX_SHOWN, PushNotifier
from postroom.services.push_encryption import decoded
from postroom.testing import ManualClock
from push_room import LOST, FakeBrowser, PushService
from work_room import SLUG, WorkRoom, hidden, opened, post

JSON = {"Accept": "application/json"}


@pytest.fixture
def service() -> Iterator[PushService]:
    with PushService().serving() as running:
        yield running


@pytest_asyncio.fixture
async def room(service: PushService, clock: ManualClock) -> AsyncIterator[WorkRoom]:
    services = service.origin, "push.example.org", "*.example.net"
    async with opened(clock, "Ada", "Ash", "Fay", runners=("Ash", "Fay"), push_services=services) as made:
        await made.leases.renew()
        yield made


async def switch_on(room: WorkRoom, browser: FakeBrowser, by: str = "lena") -> tuple[httpx2.AsyncClient, str]:
    """Log a person in, switch notifications on, and return the person's browser with its form token."""
    client = room.browser(**JSON)
    token = hidden((await client.get("/", headers={"Accept": "text/html"})).text, "form_token")
    made = await send(client, token, do="on", by=by, **browser.subscription)
    assert made.status_code == 200, made.text
    return client, token


async def send(client: httpx2.AsyncClient, token: str, **fields: str) -> httpx2.Response:
    return await post(client, "/push", ("form_token", token), *fields.items())


async def pushed(room: WorkRoom) -> None:
    """Make the server detect events, and send them."""
    await room.leases.renew()
    await room.push.round()
    await Relay(room.stores.store, {PUSH: room.push}).drain()


async def ask(room: WorkRoom) -> None:
    await room.send("Ada", "Ash")
    await room.turn()


async def shown(room: WorkRoom, service: PushService, browser: FakeBrowser) -> list[dict[str, Any]]:
    """Return the notifications that a browser got since the last call, as it decrypts them."""
    await pushed(room)
    return [browser.read(one.body) for one in service.taken()]


async def test_a_question_is_sent_once_and_only_the_browser_can_read_it(
    room: WorkRoom, service: PushService
) -> None:
    browser = service.browser()
    await switch_on(room, browser)
    await ask(room)
    for _ in range(3):
        await pushed(room)
    [request] = service.taken()
    assert request.path == "/one"
    assert b"May I?" not in request.body
    names = ("content-encoding", "ttl", "urgency")
    assert [request.headers[name] for name in names] == ["aes128gcm", "86400", "high"]
    assert len(request.headers["topic"]) == 32
    proof, key = request.headers["authorization"].removeprefix("vapid t=").split(", k=")
    public = EllipticCurvePublicKey.from_encoded_point(SECP256R1(), decoded(key))
    claims = jwt.decode(
        proof, public, algorithms=["ES256"], audience=service.origin, options={"verify_exp": False}
    )
    assert claims["sub"] == "mailto:lena@example.org"
    assert 0 < claims["exp"] * 1000 - room.clock.now() <= 24 * 3_600_000
    notice = browser.read(request.body)
    assert (notice["title"], notice["body"]) == (f"Ash in {SLUG} asks", "May I?")
    assert notice["answer"]["by"] == "lena"
    with pytest.raises(Exception, match=r"Decryption error"):
        service.browser("other").read(request.body)


async def test_without_a_subscription_nothing_is_stored_or_sent(room: WorkRoom, service: PushService) -> None:
    await ask(room)
    assert not await room.push.round()
    assert (await room.stores.store.read(lambda tx: tx.outbox.backlog(PUSH))).waiting == 0
    browser = service.browser()
    room.clock.advance(timedelta(seconds=1))
    await switch_on(room, browser)
    assert await shown(room, service, browser) == [], "it was asked before somebody switched notifications on"


async def test_a_yes_in_a_notification_answers_its_question_and_the_other_browser_is_told(
    room: WorkRoom, service: PushService
) -> None:
    one, two = service.browser("one"), service.browser("two")
    client, _ = await switch_on(room, one)
    await switch_on(room, two, by="ben")
    await ask(room)
    await pushed(room)
    sent = {request.path: request.body for request in service.taken()}
    [question] = await room.questions.questions()
    places = [place["where"] for place in (await room.questions.show(question["number"]))["shown"]]
    assert {"in a notification to lena", "in a notification to ben"} <= set(places)
    of_lena, of_ben = one.read(sent["/one"]), two.read(sent["/two"])
    told = await post(client, "/push", *of_lena["answer"].items(), ("do", "yes"))
    assert told.json() == {
        "tag": of_lena["tag"],
        "title": "You answered yes",
        "body": "Open this notification to take it back within 8 seconds.",
        "url": f"{of_lena['url']}?answered={question['number']}",
        "is_closed": True,
    }
    assert await room.questions.questions() == []
    [given] = await room.stores.store.read(lambda tx: room.questions.given_answers(tx, SLUG, limit=5))
    assert (given.approved, given.by, given.where) == (True, "lena", "in a notification")
    await pushed(room)
    [request] = service.taken()
    assert request.path == "/two"
    closed = two.read(request.body)
    assert (closed["tag"], closed["is_closed"]) == (of_ben["tag"], True)
    assert closed["body"] == "Already answered by lena in a notification: yes"
    late = await post(client, "/push", *of_lena["answer"].items(), ("do", "no"))
    assert late.json()["title"] == "Not answered"
    assert late.json()["body"] == "Already answered by lena in a notification: yes"


async def test_a_notification_of_another_session_answers_nothing(
    room: WorkRoom, service: PushService
) -> None:
    browser = service.browser()
    client, token = await switch_on(room, browser)
    await ask(room)
    [notice] = await shown(room, service, browser)
    other = room.browser(**JSON)
    for who, fields in (
        (other, notice["answer"]),
        (room.browser(logged_in=False, **JSON), notice["answer"]),
        (client, notice["answer"] | {"number": "ffffff"}),
        (client, notice["answer"] | {"project": "elsewhere"}),
    ):
        refused = await post(who, "/push", *fields.items(), ("do", "yes"))
        assert refused.status_code in (401, 403) or refused.json()["title"] == "Not answered"
    assert (
        await send(client, token, do="maybe", **{**notice["answer"], "form_token": token})
    ).status_code == 400
    assert len(await room.questions.questions()) == 1


async def test_a_question_that_is_answered_before_it_is_sent_is_not_sent(
    room: WorkRoom, service: PushService
) -> None:
    browser = service.browser()
    await switch_on(room, browser)
    await ask(room)
    await room.push.round()
    [question] = await room.questions.questions()
    await room.questions.answer(question["number"], "no", by="bea")
    assert await shown(room, service, browser) == []


@pytest.mark.parametrize(
    "asked",
    [
        ({"choices": ["EUR", "USD"]}, True),
        ({"action": "x" * 400}, True),
        ({"to": ["human:lena"]}, True),
        ({"to": ["human:ben"]}, False),
        ({"not_by": ["human:lena"]}, False),
    ],
)
async def test_buttons_are_shown_only_to_those_who_may_answer_and_see_all_that_a_yes_permits(
    room: WorkRoom, service: PushService, asked: tuple[dict[str, Any], bool]
) -> None:
    room.agents.asks, is_told = asked
    for name in ("lena", "ben"):
        await room.people_named.add(name, None)
    browser = service.browser()
    await switch_on(room, browser)
    await ask(room)
    found = await shown(room, service, browser)
    assert [bool(one.get("answer")) for one in found] == (
        [room.agents.asks == {"to": ["human:lena"]}] if is_told else []
    )


async def test_a_notification_shows_hidden_characters_of_the_action_as_codes(
    room: WorkRoom, service: PushService
) -> None:
    room.agents.asks = {"action": "rm a\u202eb\n\u200bc"}
    browser = service.browser()
    await switch_on(room, browser)
    await ask(room)
    [notice] = await shown(room, service, browser)
    assert notice["body"].startswith("Action: rm a\\u202eb\\x0a\\u200bc\n")


async def test_a_failed_run_is_told_and_closed_when_somebody_settles_it(
    room: WorkRoom, service: PushService
) -> None:
    browser = service.browser()
    await switch_on(room, browser)
    await room.send("Ada", "Fay")
    await room.turn()
    [notice] = await shown(room, service, browser)
    assert notice["title"] == f"Fay in {SLUG} failed"
    assert "the key is not known" in notice["body"]
    assert "answer" not in notice
    [dead] = await room.operator.dead()
    await room.operator.discard(dead["run_id"])
    [closed] = await shown(room, service, browser)
    assert (closed["tag"], closed["is_closed"]) == (notice["tag"], True)


@pytest.mark.parametrize(
    ("status", "headers", "wait_s", "stays"),
    [
        (429, {"Retry-After": "120"}, 120, True),
        (503, {}, 5, True),
        (404, {}, None, False),
        (410, {}, None, False),
        (403, {}, None, True),
    ],
)
async def test_what_a_push_service_refuses_is_retried_or_ends_the_subscription(
    room: WorkRoom,
    service: PushService,
    status: int,
    headers: dict[str, str],
    wait_s: int | None,
    *,
    stays: bool,
) -> None:
    browser = service.browser()
    await switch_on(room, browser)
    service.statuses.append((status, headers))
    await ask(room)
    await pushed(room)
    assert len(service.taken()) == 1
    found = await room.stores.store.read(lambda tx: tx.push.subscriptions())
    assert [str(status) in one.error for one in found] == ([True] if stays else [])
    room.clock.advance(timedelta(seconds=(wait_s or 3600) - 1))
    assert await shown(room, service, browser) == []
    room.clock.advance(timedelta(seconds=1))
    assert len(await shown(room, service, browser)) == (1 if wait_s else 0)


async def test_a_repeated_notification_replaces_the_first_one_if_the_answer_was_lost(
    room: WorkRoom, service: PushService
) -> None:
    browser = service.browser()
    await switch_on(room, browser)
    service.statuses.append((LOST, {}))
    await ask(room)
    await pushed(room)
    room.clock.advance(timedelta(seconds=5))
    await pushed(room)
    one, two = service.taken()
    assert one.headers["topic"] == two.headers["topic"]
    assert browser.read(one.body) == browser.read(two.body)
    assert one.body != two.body, "no two are encrypted with the same key"
    room.clock.advance(timedelta(hours=1))
    assert await shown(room, service, browser) == []


async def test_of_two_servers_only_the_one_with_the_lease_decides_what_a_browser_shows(
    room: WorkRoom, service: PushService
) -> None:
    browser = service.browser()
    await switch_on(room, browser)
    await ask(room)
    other = PushNotifier(
        room.runs,
        room.questions,
        room.sessions,
        room.clock,
        secret=b"p" * 32,
        services=(service.origin,),
        contact="mailto:lena@example.org",
        leases=Leases(room.stores.store, "another server", {}),
    )
    with pytest.raises(StaleClaim):
        await other.round()
    assert len(await shown(room, service, browser)) == 1


async def test_a_push_service_that_is_away_is_tried_again_but_not_for_more_than_a_day(
    room: WorkRoom, clock: ManualClock
) -> None:
    with PushService().serving() as away:
        pass
    room.push._services = (away.origin,)
    await switch_on(room, away.browser())
    await ask(room)
    await pushed(room)
    [one] = await room.stores.store.read(lambda tx: tx.push.subscriptions())
    assert one.error == "the push service cannot be reached: ConnectError"
    clock.advance(timedelta(hours=25))
    await pushed(room)
    backlog = await room.stores.store.read(lambda tx: tx.outbox.backlog(PUSH))
    assert (backlog.waiting, backlog.dead) == (0, 0)


@pytest.mark.parametrize("end", ["log out", "expire", "new token"])
async def test_a_session_that_ends_takes_its_subscription_with_it(
    room: WorkRoom, service: PushService, end: str
) -> None:
    browser = service.browser()
    client, token = await switch_on(room, browser)
    await ask(room)
    await room.push.round()
    if end == "log out":
        await post(client, "/logout", ("form_token", token))
    elif end == "expire":
        room.clock.advance(timedelta(days=31))
    else:
        room.push._secret, room.push._key = b"q" * 32, None
    assert await shown(room, service, browser) == []
    assert await room.stores.store.read(lambda tx: tx.push.subscriptions()) == []


@pytest.mark.parametrize(
    ("endpoint", "is_permitted"),
    [
        ("https://push.example.org/a?b=c", True),
        ("https://push.example.org:443/a", True),
        ("https://a.b.example.net/x", True),
        ("https://example.net/x", False),
        ("https://push.example.org:8443/a", False),
        ("http://push.example.org/a", False),
        ("https://push.example.org@127.0.0.1/a", False),
        ("https://127.0.0.1/a", False),
        ("https://[::1]/a", False),
        ("https://169.254.169.254/latest/meta-data", False),
        ("https://push.example.org.evil.test/a", False),
        ("https://push.example.org\\@evil.test/a", False),
        ("https://[broken", False),
        ("file:///etc/passwd", False),
        ("https://push.example.org/" + "a" * 2_000, False),
        ("", False),
    ],
)
async def test_only_push_services_that_the_operator_permits_are_asked(
    room: WorkRoom, service: PushService, endpoint: str, *, is_permitted: bool
) -> None:
    client, token = await switch_on(room, service.browser())
    keys = service.browser().subscription | {"endpoint": endpoint}
    made = await send(client, token, do="on", by="ben", **keys)
    assert made.status_code == (200 if is_permitted else 403), made.text
    found = await room.stores.store.read(lambda tx: tx.push.subscriptions())
    assert len(found) == 1 + is_permitted


@pytest.mark.parametrize(
    "fields",
    [{"p256dh": "AAAA"}, {"auth": "AAAA"}, {"p256dh": "é"}, {"p256dh": ""}, {"by": ""}, {"by": "x" * 65}],
)
async def test_keys_that_are_none_and_missing_names_are_refused(
    room: WorkRoom, service: PushService, fields: dict[str, str]
) -> None:
    client, token = await switch_on(room, service.browser())
    told = {"by": "ben", **service.browser("two").subscription, **fields}
    assert (await send(client, token, do="on", **told)).status_code == 400
    assert len(await room.stores.store.read(lambda tx: tx.push.subscriptions())) == 1


async def test_a_person_has_few_browsers_and_a_browser_shows_few_questions(
    room: WorkRoom, service: PushService
) -> None:
    for number in range(MAX_OF_PERSON + 2):
        room.clock.advance(timedelta(seconds=1))
        client, token = await switch_on(room, service.browser(f"b{number}"))
    found = await room.stores.store.read(lambda tx: tx.push.subscriptions())
    assert [one.endpoint.rpartition("/")[2] for one in found] == [f"b{2 + n}" for n in range(MAX_OF_PERSON)]
    for one in found[:-1]:
        await send(client, token, do="off", subscription=one.id)
    browser = service.browser("many")
    await send(client, token, do="on", by="lena", **browser.subscription)
    await send(client, token, do="off", subscription=found[-1].id)
    room.agents.more_questions = [f"May I {number}?" for number in range(MAX_SHOWN + 5)]
    await ask(room)
    notices = await shown(room, service, browser)
    assert [one["title"] for one in notices].count("More questions need you") == 1
    assert len(notices) == MAX_SHOWN + 1
    assert await shown(room, service, browser) == []
    [question, *_] = await room.questions.questions()
    await room.questions.answer(question["number"], "no", by="bea")
    await room.turn()
    closed = await shown(room, service, browser)
    assert {one["tag"] for one in closed if one.get("is_closed")} == {one["tag"] for one in notices}


async def test_a_test_notification_is_sent_at_most_once_in_ten_seconds(
    room: WorkRoom, service: PushService
) -> None:
    browser = service.browser()
    client, token = await switch_on(room, browser)
    [one] = await room.stores.store.read(lambda tx: tx.push.subscriptions())
    for name in (one.id, one.id, "none"):
        assert (await send(client, token, do="test", subscription=name)).status_code == 200
    assert (await room.stores.store.read(lambda tx: tx.outbox.backlog(PUSH))).waiting == 1
    [notice] = await shown(room, service, browser)
    assert notice["body"] == "lena gets notifications in this browser."
    state = (await client.get("/push", params={"subscription": one.id})).json()
    assert (state["is_on"], state["notices"]) == (True, [])
    assert len(decoded(state["key"])) == 65
    assert not (await room.browser(**JSON).get("/push", params={"subscription": one.id})).json()["is_on"]
    await send(client, token, do="off", subscription=one.id)
    assert not (await client.get("/push", params={"subscription": one.id})).json()["is_on"]


async def test_a_page_that_no_push_service_reaches_gets_what_needs_its_person(
    room: WorkRoom, service: PushService
) -> None:
    client = room.browser(**JSON)
    token = hidden((await client.get("/", headers={"Accept": "text/html"})).text, "form_token")
    await send(client, token, do="page", by="lena")
    await ask(room)
    [notice] = (await client.get("/push")).json()["notices"]
    assert notice["body"] == "May I?"
    told = await post(client, "/push", *notice["answer"].items(), ("do", "no"))
    assert told.json()["title"] == "You answered no"
    assert (await client.get("/push")).json()["notices"] == []
    assert service.taken() == []
