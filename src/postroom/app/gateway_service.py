"""The operator's administration of the gateway: health, people, messages and channels."""

from collections.abc import Mapping
from secrets import token_hex
from typing import Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from postroom.app.gateway_wiring import ChatService
from postroom.app.undelivered import MAX_DEAD, UndeliveredService
from postroom.contracts.chat import CHAT_KIND
from postroom.contracts.chat_people import MAX_PEOPLE, Person, PersonRole
from postroom.contracts.clock import iso
from postroom.contracts.errors import InvalidArgument, ServerUnavailable
from postroom.contracts.messages import Json
from postroom.gateway.people import ROLES_OF_HOLDERS
from postroom.gateway.platforms.base import AdapterState, BasePlatformAdapter
from postroom.gateway.platforms.http_adapter import HttpAdapter
from postroom.gateway.replies import Reply, ReplyKind, thread_name
from postroom.gateway.session import SessionSource
from postroom.gateway.wording import QUIET
from postroom.http_api.readiness import Check, channels_check
from postroom.services.administration import (
    ChatPeopleView,
    ChatPersonView,
    PairedPerson,
    RemovedChatPerson,
    StoredEffect,
)
from postroom.services.runs import retried

MAX_NOTICE_LENGTH: Final = 100_000
_HOLDERS: Final = "everybody who knows the channel's secret"


class GatewayService(UndeliveredService):
    """Implements the operator's operations on a gateway."""

    def __init__(self, chats: ChatService) -> None:
        super().__init__(chats.runs.stores, chats.adapters)
        self._chats = chats
        self._gateway = chats.gateway

    def check(self) -> Check:
        """Check how many channels are connected, and whether webhook channels accept requests."""
        ours = [
            adapter
            for adapter in self._chats.adapters
            if adapter.liveness.state is not AdapterState.ELSEWHERE
        ]
        states = [str(adapter.liveness.shown()["state"]) for adapter in ours]
        is_served = all(
            adapter.liveness.state is AdapterState.CONNECTED
            for adapter in ours
            if isinstance(adapter, HttpAdapter)
        )
        return channels_check(states, is_running=self._chats.state == "running", is_served=is_served)

    async def health(self) -> dict[str, Json]:
        """Return the state of the gateway and of each channel, and the number of messages in each state."""
        counts = await self._gateway.counts()
        messages = {
            "accepted": counts.accepted,
            "finished": counts.finished,
            "queued": counts.queued,
            "running": counts.running,
            "rejected": counts.rejected,
            "adds_up": counts.adds_up,
        }
        dispatches = await self._chats.runs.stores.dispatches.count_by_status()
        dead = await self._gateway.outbox.dead_letters(kind=CHAT_KIND, limit=MAX_DEAD)
        return {
            "state": self._chats.state,
            "channels": {
                name: {**state, **_instants(state)} for name, state in self._gateway.liveness().items()
            },
            "messages": messages,
            "dispatches": {status.label: count for status, count in dispatches.items()},
            "retried": await self._chats.runs.stores.store.read(retried),
            "undelivered": len(dead),
            "held": await self._count_waiting_for_agents(),
            "missing": [item._asdict() for item in await self._chats.missing()],
        }

    async def _count_waiting_for_agents(self) -> int:
        rows = await self._chats.runs.stores.store.read(lambda tx: tx.outbox.open(CHAT_KIND, limit=MAX_DEAD))
        held = {(row.target, row.order_key) for row in rows if row.last_error == QUIET}
        return sum((row.target, row.order_key) in held for row in rows)

    async def refresh_metrics(self) -> None:
        """Set the metrics of the gateway to the current number of runs."""
        self._chats.mailbox.metrics.show_depths(await self._chats.runs.stores.dispatches.count_by_status())

    async def pair(self, platform: str, code: str, role: str) -> PairedPerson:
        """Give access to the person who received the pairing code `code`.

        Raises:
            InvalidArgument: The code is unknown, or there is no such platform or role.
            QueueFull: Too many wrong codes have been tried.
        """
        try:
            wanted = PersonRole(role)
        except ValueError as error:
            roles = ", ".join(each.value for each in PersonRole)
            raise InvalidArgument("unknown role", value=role[:100], remedy=f"use one of {roles}") from error
        person = await self._gateway.people.pair(self._channel(platform).platform, code, wanted)
        if person is None:
            raise InvalidArgument(
                "nobody with this pairing code is waiting for access",
                value=platform,
                remedy="ask the person to write to the bot again to get a new code: each code expires "
                "and can be used only once",
            )
        return {"person": _person(person, "paired")}

    async def people(self) -> ChatPeopleView:
        """Return the people with access to chats, and the people who have asked for access."""
        store, after, kept_persons = self._gateway.stores.people, ("", ""), list[Person]()
        while page := await store.people(after=after, limit=MAX_PEOPLE):
            kept_persons += page
            after = (page[-1].platform, page[-1].user_id)
        values = [
            Person(platform=platform.value, user_id=user_id, role=role)
            for platform, config in self._gateway.config.platforms.items()
            for user_id, role in config.allow.items()
        ]
        holders = [
            Person(platform=platform.value, user_id="*", role=ROLES_OF_HOLDERS[platform], name=_HOLDERS)
            for platform in self._gateway.config.get_connected_platforms()
            if platform in ROLES_OF_HOLDERS
        ]
        return {
            "people": [
                *(_person(person, "file") for person in values),
                *(_person(person, "paired") for person in kept_persons),
                *(_person(holder, "secret") for holder in holders),
            ],
            "asking": [
                {
                    "platform": pairing_request.platform,
                    "user_id": pairing_request.user_id,
                    "name": pairing_request.name,
                    "asked_at": iso(pairing_request.asked_at),
                    "expires_at": iso(pairing_request.expires_at),
                }
                for pairing_request in await store.requests()
            ],
        }

    async def shut_out(self, platform: str, user_id: str) -> RemovedChatPerson:
        """Remove a person who got access with a pairing code.

        Raises:
            InvalidArgument: No person with this id has been admitted.
        """
        if not await self._gateway.people.shut_out(platform, user_id):
            raise InvalidArgument(
                "nobody with this id was admitted by a pairing code",
                value=user_id,
                remedy=(
                    "list the people with `postroom gateway people`; people listed in gateway.toml must be "
                    "removed there"
                ),
            )
        return {"platform": platform, "user_id": user_id, "removed": True}

    async def send(
        self,
        platform: str,
        text: str,
        chat_id: str | None = None,
        thread_id: str | None = None,
        key: str | None = None,
    ) -> StoredEffect:
        """Store a message to a chat or to the home channel, and return the stored message.

        Calls with the same `key` send only one message.
        """
        adapter = self._channel(platform)
        if not text.strip() or chat_id == "" or len(text) > MAX_NOTICE_LENGTH:
            raise InvalidArgument(
                f"a message to a chat needs a chat id and a text of 1 to {MAX_NOTICE_LENGTH} characters",
                remedy="send platform, chat_id and text",
            )
        if not adapter.liveness.is_reachable:
            raise ServerUnavailable(
                f"the channel {adapter.platform.value} is not connected",
                value=adapter.liveness.error,
                remedy="send the message again when `postroom gateway status` shows that the channel is "
                "connected",
            )
        if chat_id is None:
            made = await self._gateway.stores.sessions.load(
                f"home:{adapter.platform.value}:{adapter.account}"
            )
            home = self._gateway.config.get_home_channel(adapter.platform)
            if made is not None:
                chosen = SessionSource.from_dict(made.source)
                chat_id, thread_id = chosen.chat_id, thread_id or chosen.thread_id
            elif home is not None:
                chat_id, thread_id = home.chat_id, thread_id or home.thread_id
            else:
                raise InvalidArgument(
                    f"{adapter.platform.value} has no home channel",
                    value=adapter.platform.value,
                    remedy="pass a chat id, set home_channel in gateway.toml, or send /sethome in a chat",
                )
        source = SessionSource(
            platform=adapter.platform, chat_id=chat_id, thread_id=thread_id, account=adapter.account
        )
        reply = Reply(
            kind=ReplyKind.NOTICE,
            thread_id=thread_name(adapter.platform.value, adapter.account, "notice"),
            text=text,
            source=source.to_dict(),
        )
        row = await self._gateway.outbox.enqueue(reply.draft(f"sent/{key or token_hex(16)}"))
        self._gateway.wake()
        return {"outbox_id": row.outbox_id, "status": row.status.value}

    async def passed_on(self, platform: str, request: Request) -> Response | None:
        """Forward a request to the server of a channel, and return the response.

        Return None if this server serves the channel.

        Raises:
            InvalidArgument: There is no such channel.
            ServerUnavailable: No server serves the channel, or the server does not answer.
        """
        return await self._chats.passed_on(self._channel(platform), request)

    async def reconnect(self, platform: str) -> Mapping[str, Json]:
        """Reconnect a channel, and return the channel's state.

        Raises:
            InvalidArgument: There is no such channel.
            ServerUnavailable: The gateway is starting or stopping.
        """
        adapter = self._channel(platform)
        if self._chats.state != "running":
            raise ServerUnavailable(
                f"the gateway is {self._chats.state}, so its channels are not connected",
                remedy="try again when `postroom gateway status` shows that the gateway is running",
            )
        adapter.liveness.dead_updates = 0
        await self._gateway.reconnect(adapter)
        state = self._gateway.liveness()[adapter.platform.value]
        return {"platform": adapter.platform.value, **state, **_instants(state)}

    def _channel(self, platform: str) -> BasePlatformAdapter:
        for adapter in self._chats.adapters:
            if adapter.platform.value == platform:
                return adapter
        names = ", ".join(adapter.platform.value for adapter in self._chats.adapters)
        raise InvalidArgument("unknown channel", value=platform[:100], remedy=f"use one of {names}")


def _person(person: Person, origin: Literal["file", "paired", "secret"]) -> ChatPersonView:
    return {
        "platform": person.platform,
        "user_id": person.user_id,
        "role": person.role.value,
        "name": person.name,
        "from": origin,
        "added_at": iso(person.added_at) if person.added_at else None,
    }


def _instants(state: Mapping[str, Json]) -> dict[str, Json]:
    names = ("since", "inbound_at", "outbound_at")
    return {name: iso(at) for name in names if isinstance(at := state.get(name), int)}
