"""The people who may write in chats. A person is identified by the permanent user id of the platform.

config: allow ──┐
admitted, kept ─┼─▶ a role ─▶ may write, may use a command, may answer a question
paired by code ─┘
"""

from collections import OrderedDict
from hashlib import sha256
from secrets import choice
from typing import TypeVar

from postroom.contracts.chat_links import LinkedChat
from postroom.contracts.chat_people import PairingRequest, Person, PersonRole
from postroom.contracts.clock import Clock
from postroom.contracts.errors import QueueFull
from postroom.contracts.people import ChatAddress
from postroom.contracts.records import replace
from postroom.gateway.config import GatewayConfig
from postroom.gateway.session import Platform, SessionSource
from postroom.stores.chats.links import ChatLinks
from postroom.stores.chats.people import ChatPeople

K = TypeVar("K")
V = TypeVar("V")
CODE_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
CODE_LENGTH = 8
_KNOWN_FOR_MS = 30_000
_MAX_KNOWN = 10_000
ROLES_OF_HOLDERS = {
    Platform.WEB: PersonRole.OWNER,
    Platform.API_SERVER: PersonRole.OPERATOR,
    Platform.WEBHOOK: PersonRole.MEMBER,
    Platform.LOCAL: PersonRole.OWNER,
}
"""The role of a caller who knows the secret of a channel, for platforms that require a secret."""


class People:
    """The people who may write to agents, and strangers who ask for permission."""

    def __init__(self, store: ChatPeople, links: ChatLinks, config: GatewayConfig, clock: Clock) -> None:
        self._store = store
        self._links = links
        self._config = config
        self._clock = clock
        self._known: OrderedDict[tuple[str, str], tuple[int, PersonRole | None]] = OrderedDict()
        self._linked: OrderedDict[ChatAddress, tuple[int, LinkedChat | None]] = OrderedDict()

    async def learn(self, source: SessionSource) -> SessionSource:
        """Load the sender's role from the store into the cache that `get_role` reads.

        Return `source`, with `person` set if the chat is linked with other chats.

        Raises:
            StoreError: The person could not be read.
        """
        source = source if source.person is None else replace(source, person=None)
        if source.user_id is None:
            return source
        who, now = (source.platform.value, source.user_id), self._clock.now()
        if not _is_fresh(self._known.get(who), now):
            person = await self._store.person(*who)
            _remember(self._known, who, (now, None if person is None else person.role))
        if source.chat_type != "dm" or source.thread_id is not None or not source.chat_id:
            return source
        address = source.address
        if not _is_fresh(self._linked.get(address), now):
            _remember(self._linked, address, (now, await self._links.find(address)))
        _, chat = self._linked[address]
        return replace(source, person=chat.person) if chat is not None and chat.shares else source

    def forget_links(self) -> None:
        """Empty the cache of linked chats after a link has changed."""
        self._linked.clear()

    def get_role(self, source: SessionSource) -> PersonRole | None:
        """Return the sender's role in a chat, or None if the sender has no role.

        Call `learn` first, because `get_role` reads only cached roles.
        """
        config = self._config.platforms.get(source.platform)
        allow = config.allow if config is not None else {}
        if source.user_id is None:
            return ROLES_OF_HOLDERS.get(source.platform)
        if source.user_id in allow:
            return allow[source.user_id]
        if source.is_bot:
            return None
        _, kept_role = self._known.get((source.platform.value, source.user_id), (0, None))
        return kept_role or ROLES_OF_HOLDERS.get(source.platform) or allow.get("*")

    def may(self, source: SessionSource, role: PersonRole) -> bool:
        """Return whether the sender's role has at least the permissions of `role`."""
        has = self.get_role(source)
        return has is not None and has.reaches(role)

    def may_write(self, source: SessionSource) -> bool:
        """Return whether the sender may write to an agent."""
        return self.may(source, PersonRole.MEMBER)

    async def code_for(self, source: SessionSource) -> str | None:
        """Return a pairing code for a stranger, or None if the stranger must get no reply.

        A stranger gets a code only in a direct message, and only if the configuration enables pairing. No
        code is returned when the limit of pairing requests is reached.
        """
        asks = source.chat_type == "dm" and source.user_id is not None and not source.is_bot
        if not asks or self._config.unauthorized_dm_behavior != "pair":
            return None
        code = new_code()
        request = PairingRequest(
            platform=source.platform.value,
            user_id=source.user_id or "",
            code_hash=hash_code(source.platform.value, code),
            name=source.user_name,
        )
        try:
            await self._store.ask(request, self._config.pairing)
        except QueueFull:
            return None
        return code

    async def pair(self, platform: str, code: str, role: PersonRole = PersonRole.MEMBER) -> Person | None:
        """Admit the person who received a pairing code, and return the person.

        Return None if the code is unknown or has expired.

        Raises:
            QueueFull: Too many wrong codes have been tried.
        """
        person = await self._store.redeem(
            platform, hash_code(platform, code.strip().upper()), self._config.pairing, role=role
        )
        if person is not None:
            self._known.pop((platform, person.user_id), None)
        return person

    async def shut_out(self, platform: str, user_id: str) -> bool:
        """Remove a person's role; return False if the person had no role.

        Other processes apply the removal within 30 seconds.
        """
        self._known.pop((platform, user_id), None)
        return await self._store.shut_out(platform, user_id)


def _is_fresh(known: tuple[int, object] | None, now: int) -> bool:
    return known is not None and 0 <= now - known[0] < _KNOWN_FOR_MS


def _remember(kept: OrderedDict[K, V], key: K, value: V) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _MAX_KNOWN:
        kept.popitem(last=False)


def new_code() -> str:
    """Return a random code that people can type and that is hard to guess."""
    return "".join(choice(CODE_ALPHABET) for _ in range(CODE_LENGTH))


def hash_code(platform: str, code: str) -> str:
    """Return the hash under which a code is stored."""
    return sha256(f"{platform}\0{code}".encode()).hexdigest()
