"""Notifies people in their browsers of questions and failures, by Web Push.

    a question or failure, or its end ─▶ `round` ─▶ one change: a notice, and an effect for each browser
    the relay ─▶ `perform` ─▶ what the question says now, encrypted ─▶ the push service of the browser

A notification is sent only to browsers in which a person has asked for it. An effect names only the run and
the question, so the outbox contains no text, and the notification shows the state at the time when it is
sent. A browser shows each question once, even if an effect is repeated, because notifications with the same
tag replace each other.
"""

import asyncio
import ssl
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Final, TypedDict
from urllib.parse import quote

import msgspec

from postroom.concurrency import SystemTimer
from postroom.contracts.clock import Clock, milliseconds
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.errors import InvalidArgument, NotPermitted, PostroomError, StaleDecision
from postroom.contracts.outbox import NO_END, OutboxDraft, OutboxMessage
from postroom.contracts.plain_answers import MAX_NAME_LENGTH, check_person_name, unanswered
from postroom.contracts.push import PUSH, PushSubscription, is_permitted
from postroom.contracts.questions import (
    NOBODY,
    NOTIFICATION,
    Given,
    QuestionKind,
    may_answer,
    person,
)
from postroom.contracts.quoting import exact, one_line
from postroom.contracts.records import Record, field
from postroom.contracts.retrying import retry_after_ms
from postroom.contracts.run_stores import MAX_PAGE
from postroom.contracts.runs import RunRecord, RunStatus
from postroom.contracts.work import GivenAnswer, OpenQuestion
from postroom.gateway.replies import question_of
from postroom.leases import Leases
from postroom.log import get_logger
from postroom.relay import NotPerformed, Outcome, Performed
from postroom.services.floor import dispatch_of
from postroom.services.login_codes import Sessions
from postroom.services.questions import TAKE_BACK_MS, QuestionService, open_question
from postroom.services.runs import RunService, owner_of
from postroom.services.shown import SurfaceRecords
from postroom.stores.changes import MAIL
from postroom.stores.store import Joined, SqlStore, Transaction

if TYPE_CHECKING:
    from postroom.services.push_encryption import ServerKey

_LOG = get_logger(__name__)
MAX_SHOWN: Final = 20
"""Maximum number of open questions and failures that a browser shows.

If there are more items, one further notification says so.
"""
MAX_OF_PERSON: Final = 10
"""Maximum number of browsers of one person; the next one replaces the oldest."""
MAX_SUBSCRIPTIONS: Final = 200
MAX_TEXT_LENGTH: Final = 300
"""Maximum number of characters of a question in a notification."""
POLL: Final = timedelta(seconds=1)
POLL_WITHOUT: Final = timedelta(seconds=30)
"""Maximum time until the first subscription is noticed if its notification is lost."""
_REST: Final = 5
"""The length of the pause after a round, as a multiple of the length of the round."""
_OVERLAP_MS: Final = 5_000
"""The time by which each round reads back, because changes are not committed in the order of their times."""
_KEPT_MS: Final = 24 * 3_600_000
"""The time for which a notification is tried, and for which it is remembered after its end."""
_TEST_MS: Final = 10_000
"""The minimum time between two test notifications."""
_SECONDS: Final = 10
"""The time limit of a request to a push service."""
_MORE: Final = "more"
_TEST: Final = "test"
_GONE: Final = (404, 410)
_BUSY: Final = (408, 425, 429)


class Notice(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A notification for a browser's service worker.

    `tag` identifies the question or the failed run.
    """

    tag: str
    title: str
    body: str = ""
    url: str = "/"
    answer: dict[str, str] = field(default_factory=dict)
    """The fields of the form with which a yes or no is sent; empty if the notification only opens a page."""
    is_closed: bool = False
    """Whether the notification replaces an earlier one, and needs no action by a person."""
    expires_at: int | None = None
    """The time after which the notification is not delivered, because the question accepts no answer then."""


@dataclass(frozen=True, slots=True)
class _Item:
    """An open question or a failure about which a browser may be notified."""

    name: str
    at: int
    question: OpenQuestion | None = None

    def concerns(self, name: str) -> bool:
        return self.question is None or may_answer(self.question.asked, person(name))


class PushState(TypedDict):
    """The state of a browser's notifications."""

    key: str
    """The server's public key for a browser that subscribes; empty if no push service is permitted."""
    is_on: bool
    """Whether the subscription exists about which the page asked."""
    notices: Sequence[Notice]
    """The notifications that need the person now; the page shows them if the browser cannot be reached."""


class PushNotifier:
    """Stores push subscriptions, and decides and sends the notifications of each browser."""

    lease = timedelta(seconds=3 * _SECONDS)
    at_once = 2
    together = False
    retries = (timedelta(seconds=5), timedelta(minutes=15))

    def __init__(  # noqa: PLR0913 - every port by name
        self,
        runs: RunService,
        questions: QuestionService,
        visitors: Sessions,
        clock: Clock,
        *,
        secret: bytes,
        services: Collection[str],
        contact: str,
        leases: Leases,
    ) -> None:
        """Create the notifier.

        The server's key is derived from the 32 bytes `secret`. Requests are sent only to `services`.
        `contact` is the address at which a push service reaches the operator.
        """
        self._store: SqlStore = runs.stores.store
        self._questions, self._visitors, self._clock = questions, visitors, clock
        self._secret, self._services, self._contact = secret, services, contact
        self._leases, self._timer = leases, SystemTimer()
        self._shown = SurfaceRecords(self._store)
        self._key: ServerKey | None = None
        self._tls: ssl.SSLContext | None = None
        self._seen_at = 0
        """The time up to which rounds of this process have considered all changes, or 0 before the first
        round.
        """
        leases.want(PUSH)

    async def state(self, cookies: str, subscription_id: str, name: str) -> PushState:
        """Return the state of a browser's notifications.

        `name` is the person who is logged in.
        """
        token = self._visitors.form_token(cookies) or ""

        def look(tx: Transaction) -> tuple[bool, list[Notice]]:
            own = tx.push.subscription(subscription_id)
            asked = self._questions.newest(tx, MAX_SHOWN)
            names = [_question_item(one.run_id, one.number) for one in asked]
            latest = self._dead(tx, tx.now() - _KEPT_MS)
            names += [subscription.name for subscription in list(latest)[-MAX_SHOWN:]]
            notices = [self._notice(tx, item, name, token, "") for item in names]
            return own is not None and own.form_token == token, [
                notice for notice in notices if notice and not notice.is_closed
            ]

        is_on, notices = await self._store.read(look)
        return {
            "key": (await self._server_key()).public if self._services else "",
            "is_on": is_on,
            "notices": notices,
        }

    async def subscribe(self, cookies: str, endpoint: str, p256dh: str, auth: str, name: str) -> str:
        """Notify a person in a browser until the session ends; return the subscription id.

        Raises:
            NotPermitted: The browser's push service is not permitted, or there are too many subscriptions.
            InvalidArgument: The keys are not those of a browser, or the person has no name.
        """
        if not is_permitted(endpoint, self._services):
            raise NotPermitted(
                "the push service of this browser is not in the list of permitted services",
                value=endpoint.partition("://")[2].partition("/")[0][:100],
                remedy="the operator can add the push service to the setting push_services",
            )
        if not 0 < len(name) <= MAX_NAME_LENGTH:
            raise InvalidArgument(
                f"a name must have 1 to {MAX_NAME_LENGTH} characters", value="by", remedy="enter your name"
            )
        name = check_person_name(name)
        key = await self._server_key()
        try:
            await asyncio.to_thread(self._seal, b"", p256dh, auth)
        except ValueError as error:
            raise InvalidArgument(
                "the browser sent invalid keys", value="p256dh", remedy="reload the page and try again"
            ) from error
        token, ends_at = self._visitors.form_token(cookies), self._visitors.ends_at(cookies)
        if token is None or ends_at is None:
            raise NotPermitted("notifications require a login", remedy="log in")

        def change(tx: Transaction) -> str:
            tx.lock(PUSH)
            now, subscriptions = (
                tx.now(),
                [
                    subscription
                    for subscription in tx.push.subscriptions()
                    if subscription.endpoint != endpoint
                ],
            )
            if len(subscriptions) >= MAX_SUBSCRIPTIONS:
                raise NotPermitted(
                    f"{MAX_SUBSCRIPTIONS} browsers already get notifications, the maximum",
                    remedy="turn off notifications in a browser that is no longer used",
                )
            own = [subscription.id for subscription in subscriptions if subscription.person == name]
            tx.push.drop(own[: len(own) - MAX_OF_PERSON + 1] if len(own) >= MAX_OF_PERSON else [])
            made = PushSubscription(
                id=tx.new_id(),
                endpoint=endpoint,
                p256dh=p256dh,
                auth=auth,
                person=name,
                form_token=token,
                server_key=key.public,
                created_at=now,
                ends_at=ends_at,
                seen_at=now,
            )
            tx.push.put(made)
            return made.id

        return await self._store.write(change)

    async def unsubscribe(self, subscription_id: str) -> None:
        """Stop notifying a browser."""
        await self._store.write(lambda tx: tx.push.drop([subscription_id]))

    async def test(self, subscription_id: str) -> None:
        """Send a test notification, at most once in 10 seconds."""
        if await self._store.read(lambda tx: tx.push.subscription(subscription_id)) is None:
            return
        number = self._clock.now() // _TEST_MS
        await self._store.write(lambda tx: _enqueue(tx, [(subscription_id, f"{_TEST}/{number}", "show")]))

    async def answer(
        self, project: str, run_id: str, number: str, answer: str, *, by: str, where: str
    ) -> Notice:
        """Answer a question from a notification, and return the notification that replaces the old one.

        If the question is no longer open, the answer is ignored. `where` is the subscription that showed the
        notification, or "" for a page.

        Raises:
            InvalidArgument, NotPermitted: The answer is neither yes nor no, or this person may not answer.
        """
        item = _question_item(run_id, number)
        tag, url = _tag(item), _page_address(project, run_id)
        # Done first, so that no round tells the answering browser that the question was answered.
        await self._store.write(lambda tx: tx.push.close_notice(where, item))
        try:
            await self._questions.decide(
                project, run_id, number, Given(value=answer, by=person(by), at=NOTIFICATION)
            )
        except StaleDecision:
            given_answer = await self._store.read(
                lambda tx: self._questions.given_answer(tx, project, run_id, number)
            )
            return Notice(
                tag=tag, title="Not answered", body=_describe_end(given_answer), url=url, is_closed=True
            )
        body = ""
        if project:
            url += f"?answered={number}"
            body = f"Open this notification to take it back within {TAKE_BACK_MS // 1_000} seconds."
        return Notice(tag=tag, title=f"You answered {answer}", body=body, url=url, is_closed=True)

    async def serve(self) -> None:
        """Call `round` after each change, and at least once a second, until cancelled."""
        loop, changes = asyncio.get_running_loop(), self._store.changes
        has_any = True
        while True:
            with changes.listen(MAIL if has_any else PUSH) as news:
                await news.wait(POLL if has_any else POLL_WITHOUT)
            if not self._leases.holds(PUSH):
                continue
            began = loop.time()
            try:
                has_any = await self.round()
            except PostroomError as error:
                _LOG.warning("push.round_failed", reason=error.describe())
            rest_ms = min(_REST * (loop.time() - began) * 1_000, milliseconds(POLL_WITHOUT))
            await self._timer.sleep(int(rest_ms))

    async def round(self) -> bool:
        """Decide which notifications each browser shows, and store the resulting effects.

        Returns:
            Whether there is any subscription.

        Raises:
            StoreError: Nothing was stored; the next round tries again.
        """
        if self._key is None:
            if not await self._store.read(lambda tx: tx.push.subscriptions()):
                return False
            await self._server_key()
        plan = await self._store.read(self._plan)
        if plan is None:
            return False
        if plan.is_news:
            # An outdated plan does no harm, because `perform` reads the question again before it sends
            # anything.
            await self._store.write(self._leases.guarded(PUSH, plan.write))
        self._seen_at = plan.seen_at
        return True

    def _plan(self, tx: Transaction) -> "_Plan | None":
        subscriptions = tx.push.subscriptions()
        if not subscriptions:
            return None
        now = tx.now()
        plan = _Plan(seen_at=now - _OVERLAP_MS)
        plan.useless = [
            subscription.id
            for subscription in subscriptions
            if subscription.ends_at <= now or not self._is_own(subscription)
        ]
        served = [subscription for subscription in subscriptions if subscription.id not in plan.useless]
        seen, open_items = set[tuple[str, str]](), {subscription.id: set[str]() for subscription in served}
        for notice in tx.push.notices():
            seen.add((notice.subscription_id, notice.item))
            if notice.closed_at is None and notice.subscription_id in open_items:
                open_items[notice.subscription_id].add(notice.item)
        shown_items = set[str]().union(*open_items.values()) - {_MORE}
        still = {item: self._is_open(tx, item) for item in shown_items}
        for entry, items in open_items.items():
            closed = {item for item in items if not still.get(item, True)}
            items -= closed
            if _MORE in items and len(items) <= MAX_SHOWN:
                closed.add(_MORE)
                items.discard(_MORE)
            plan.effects += [(entry, item, "close") for item in sorted(closed)]
        since = self._seen_at or min((subscription.seen_at for subscription in served), default=now)
        for item in self._news(tx, since - _OVERLAP_MS):
            if all(_MORE in items for items in open_items.values()):
                break
            for browser in served:
                items = open_items[browser.id]
                is_known = (browser.id, item.name) in seen or _MORE in items
                if is_known or item.at < browser.created_at or not item.concerns(browser.person):
                    continue
                shown = item.name if len(items) < MAX_SHOWN else _MORE
                items.add(shown)
                plan.effects.append((browser.id, shown, "show"))
        return plan

    def _is_own(self, subscription: PushSubscription) -> bool:
        """Return whether a subscription belongs to the server's current key."""
        return self._key is not None and subscription.server_key == self._key.public

    def _news(self, tx: Transaction, since: int) -> Iterator[_Item]:
        """Yield the questions and failures since a time, each oldest first."""
        after = since, ""
        while page := tx.runs.threads.asked_since(*after, MAX_PAGE):
            after = page[-1].updated_at, page[-1].run_id
            for run in page:
                for question in self._open_in(tx, run):
                    yield _Item(_question_item(run.run_id, question.number), run.updated_at, question)
        yield from self._dead(tx, since)

    def _dead(self, tx: Transaction, since: int) -> Iterator[_Item]:
        after = since, ""
        while page := tx.runs.dispatches.by_status(
            RunDispatchStatus.DEAD_LETTER, limit=MAX_PAGE, after=after
        ):
            after = page[-1].updated_at, page[-1].dispatch_id
            yield from (_Item(f"failed/{row.run_id}", row.updated_at) for row in page)

    def _open_in(self, tx: Transaction, run: RunRecord) -> Iterator[OpenQuestion]:
        if run.status is not RunStatus.WAITING:
            return
        snoozed = tx.mail.snoozed([run.run_id], tx.now())
        for ticket in run.open_tickets:
            question = question_of(run, ticket)
            if (run.run_id, question.call_id) not in snoozed:
                yield open_question(run, question, tx)

    def _is_open(self, tx: Transaction, item: str) -> bool:
        kind, run_id, number = _parts(item)
        run = tx.runs.threads.load_run(run_id)
        if run is None:
            return False
        if kind == "question":
            return any(question.number == number for question in self._open_in(tx, run))
        row = dispatch_of(tx, run)
        return row is not None and row.status is RunDispatchStatus.DEAD_LETTER

    def _notice(self, tx: Transaction, item: str, name: str, form_token: str, where: str) -> Notice | None:
        kind, run_id, number = _parts(item)
        if item == _MORE:
            body = "Besides those shown here, more questions or failed runs need you."
            return Notice(tag=_tag(item), title="More questions need you", body=body)
        run = tx.runs.threads.load_run(run_id)
        if run is None:
            return None
        agent, project, chat = owner_of(run.thread_id)
        place = f"{one_line(agent) or 'An agent'} in {one_line(project or chat)}"
        url = _page_address(project, run_id)
        if kind == "failed":
            if not self._is_open(tx, item):
                return Notice(
                    tag=_tag(item), title=place, body="The failed run was settled.", url=url, is_closed=True
                )
            row = dispatch_of(tx, run)
            why = one_line((row.last_error if row else "") or run.error or "")
            return Notice(tag=_tag(item), title=f"{place} failed", body=_clip(why), url=url)
        question = next((question for question in self._open_in(tx, run) if question.number == number), None)
        if question is None:
            answer = self._questions.given_answer(tx, project, run_id, number)
            return Notice(tag=_tag(item), title=place, body=_describe_end(answer), url=url, is_closed=True)
        if not may_answer(question.asked, person(name)):
            return None
        action = (
            f"Action: {exact(question.asked.action, is_one_line=True)}\n" if question.asked.action else ""
        )
        body = action + one_line(question.text)
        fields = {"form_token": form_token, "project": project, "run": run_id, "number": number, "by": name}
        # A yes must not permit anything that its notification does not show.
        can_answer = (
            question.asked.kind is QuestionKind.YES_NO and len(body) <= MAX_TEXT_LENGTH and bool(name)
        )
        return Notice(
            tag=_tag(item),
            title=f"{place} asks",
            body=_clip(body),
            url=url,
            answer=fields | {"where": where} if can_answer else {},
            expires_at=question.expires_at,
        )

    def serves(self, target: str) -> bool:
        """Return True, because every process can notify every browser."""
        return True

    def _meant(
        self, tx: Transaction, subscription_id: str, item: str, *, does_close: bool
    ) -> tuple[PushSubscription | None, Notice | None]:
        """Return the subscription and the notification of an effect, each None if it no longer exists."""
        subscription = tx.push.subscription(subscription_id)
        if subscription is None:
            return None, None
        if item.startswith(f"{_TEST}/"):
            body = f"{subscription.person} gets notifications in this browser."
            return subscription, Notice(tag=_TEST, title="postroom", body=body)
        if item == _MORE and does_close:
            return subscription, Notice(tag=_tag(item), title="Fewer questions need you", is_closed=True)
        token = subscription.form_token
        notice = self._notice(tx, item, subscription.person, token, subscription.id)
        if does_close and not tx.push.has_notice(subscription.id, item):
            return subscription, None
        return subscription, notice

    async def perform(self, rows: Sequence[OutboxMessage]) -> Outcome:
        """Send a notification, unless the notification is no longer needed."""
        [row] = rows
        item, does_close = str(row.payload["item"]), row.payload["do"] == "close"
        subscription, notice = await self._store.read(
            lambda tx: self._meant(tx, row.target, item, does_close=does_close)
        )
        key, now = await self._server_key(), self._clock.now()
        if subscription is None:
            return Performed()
        if subscription.ends_at <= now or not self._is_own(subscription):
            return Performed(also=_drop(subscription))
        if notice is None or now - row.created_at > _KEPT_MS or notice.is_closed != does_close:
            # An item that was settled before it could be shown is neither shown nor closed.
            return Performed(
                also=None
                if does_close
                else Joined(locks=(PUSH,), change=lambda tx: tx.push.drop_notice(subscription.id, item))
            )
        if not is_permitted(subscription.endpoint, self._services):
            return Performed(
                also=_note_error(
                    subscription, "the browser's push service is not in the setting push_services"
                )
            )
        until = min(row.created_at + _KEPT_MS, notice.expires_at or now + _KEPT_MS)
        urgency = "normal" if notice.is_closed or item.startswith("failed/") else "high"
        headers = {
            "Authorization": key.proof(subscription.endpoint, contact=self._contact, now=now),
            "Content-Encoding": "aes128gcm",
            "Content-Type": "application/octet-stream",
            "TTL": str(max(until - now, 0) // 1000),
            "Topic": sha256(notice.tag.encode()).hexdigest()[:32],
            "Urgency": urgency,
        }
        text = msgspec.json.encode(notice)
        body = await asyncio.to_thread(self._seal, text, subscription.p256dh, subscription.auth)
        kind, run_id, number = _parts(item)
        keys = [(run_id, number)] if kind == "question" and not does_close else []
        return await self._post(subscription, headers, body, keys)

    async def _post(
        self,
        subscription: PushSubscription,
        headers: dict[str, str],
        body: bytes,
        asked: Sequence[tuple[str, str]],
    ) -> Outcome:
        import httpx2

        if self._tls is None:
            self._tls = await asyncio.to_thread(httpx2.create_ssl_context)
        try:
            # Ignore the environment, so that no proxy sees the secret URL of the browser.
            async with (
                httpx2.AsyncClient(
                    verify=self._tls, timeout=_SECONDS, follow_redirects=False, trust_env=False
                ) as client,
                client.stream("POST", subscription.endpoint, headers=headers, content=body) as answer,
            ):
                status, response_headers = answer.status_code, dict(answer.headers)
        except httpx2.InvalidURL:
            return Performed(
                also=_note_error(subscription, "the browser's address at the push service is not valid")
            )
        except httpx2.HTTPError as error:
            reason = f"the push service cannot be reached: {type(error).__name__}"
            sent = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            return NotPerformed(error=reason, may_have_arrived=sent, also=_note_error(subscription, reason))
        if status in _GONE:
            _LOG.info("push.subscription_ended", person=subscription.person, status=status)
            return Performed(also=_drop(subscription))
        if 200 <= status < 300:
            await self._shown.note(asked, f"in a notification to {subscription.person}")
            return Performed(also=_note_error(subscription, ""))
        reason = f"the push service answered with status {status}"
        if status in _BUSY or status >= 500:
            wait = retry_after_ms(response_headers, now=self._clock.now()) or 0
            return NotPerformed(error=reason, not_before_ms=wait, also=_note_error(subscription, reason))
        _LOG.warning("push.refused", person=subscription.person, status=status)
        return Performed(also=_note_error(subscription, reason))

    def _seal(self, text: bytes, p256dh: str, auth: str) -> bytes:
        from postroom.services.push_encryption import encrypted

        return encrypted(text, p256dh, auth)

    async def _server_key(self) -> "ServerKey":
        def make() -> "ServerKey":
            from postroom.services.push_encryption import ServerKey

            return ServerKey(self._secret)

        if self._key is None:
            self._key = await asyncio.to_thread(make)
        return self._key


class _Plan:
    def __init__(self, seen_at: int) -> None:
        self.seen_at = seen_at
        self.useless: list[str] = []
        """The ids of subscriptions whose session has ended, or that are for an earlier key of the server."""
        self.effects: list[tuple[str, str, str]] = []
        """The subscription, the item, and `show` or `close` of each effect."""

    @property
    def is_news(self) -> bool:
        return bool(self.useless or self.effects)

    def write(self, tx: Transaction) -> None:
        _enqueue(tx, self.effects)
        for subscription_id, item, do in self.effects:
            (tx.push.add_notice if do == "show" else tx.push.close_notice)(subscription_id, item)
        tx.push.drop(self.useless)
        tx.push.see(self.seen_at)
        tx.push.purge_notices(tx.now() - _KEPT_MS)


def _enqueue(tx: Transaction, effects: Sequence[tuple[str, str, str]]) -> None:
    drafts = [
        OutboxDraft(
            kind=PUSH,
            target=subscription_id,
            payload={"item": item, "do": do},
            dedupe_key=None if item == _MORE else f"{item}/{do}",
            max_attempts=NO_END,
            order_key=_parts(item)[0] if item == _MORE else item,
        )
        for subscription_id, item, do in effects
    ]
    tx.lock(PUSH, *sorted({lock for draft in drafts for lock in draft.locks}))
    tx.outbox.enqueue(drafts)


def _drop(subscription: PushSubscription) -> Joined:
    return Joined(locks=(PUSH,), change=lambda tx: tx.push.drop([subscription.id]))


def _note_error(subscription: PushSubscription, error: str) -> Joined:
    return Joined(locks=(PUSH,), change=lambda tx: tx.push.note_result(subscription.id, error=error))


def _question_item(run_id: str, number: str) -> str:
    return f"question/{run_id}/{number}"


def _parts(item: str) -> tuple[str, str, str]:
    kind, _, rest = item.partition("/")
    run_id, _, number = rest.rpartition("/") if kind == "question" else (rest, "", "")
    return kind, run_id, number


def _tag(item: str) -> str:
    return f"postroom/{item}"


def _page_address(project: str, run_id: str) -> str:
    run = quote(run_id, safe="")
    return f"/p/{quote(project, safe='')}/runs/{run}" if project else f"/chats/{run}"


def _clip(text: str) -> str:
    return text if len(text) <= MAX_TEXT_LENGTH else f"{text[: MAX_TEXT_LENGTH - 1]}…"


def _describe_end(given: GivenAnswer | None) -> str:
    if given is None:
        return "This question is no longer open: it was snoozed, withdrawn or cancelled."
    if given.by == NOBODY:
        how = unanswered(given.approved) if given.is_default else "Closed"
        return _clip(f"{how}: {one_line(given.why)}")
    word = {True: "yes", False: "no"}.get(given.approved, given.why or "answered")  # type: ignore[arg-type]
    who = " ".join(part for part in (given.by or "somebody", given.where) if part)
    return _clip(f"Already answered by {one_line(who)}: {one_line(word)}")
