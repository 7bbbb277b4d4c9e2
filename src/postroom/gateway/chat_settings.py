"""The command `/set`, which changes the settings of a chat or session.

`gateway.toml` contains the defaults.

busy, reset, model, instructions, voice ─▶ of the session: in a group each person's with each agent
quiet                                   ─▶ of the chat, for everybody
"""

import asyncio
import re
from datetime import timedelta
from typing import Final

from msgspec import structs

from postroom.contracts.chat import ChatSession
from postroom.contracts.chat_people import PersonRole
from postroom.contracts.clock import MAX_DURATION, parse_duration
from postroom.contracts.errors import ConfigError
from postroom.contracts.messages import Json
from postroom.contracts.records import replace
from postroom.gateway import wording
from postroom.gateway.config import (
    CHAT_POLICIES,
    VOICE_OFF,
    VOICE_ON,
    GatewayConfig,
    ResetMode,
    SessionResetPolicy,
)
from postroom.gateway.people import People
from postroom.gateway.quiet import QuietHours
from postroom.gateway.reminders import span_in_words
from postroom.gateway.session import ANSWER_ONLY, SessionSource
from postroom.gateway.sessions import QUIET_OFF, Sessions

SETTINGS: Final = ("busy", "reset", "quiet", "voice", "model", "instructions")
_DEFAULT: Final = "default"
_MAX_LENGTH: Final = 4_000
_SHOWN: Final = 60
_HOUR: Final = re.compile(r"[01]?[0-9]|2[0-3]")


class ChatSettings:
    """The chat settings that people read and change with `/set`."""

    def __init__(self, config: GatewayConfig, people: People, sessions: Sessions) -> None:
        self._config, self._people, self._sessions = config, people, sessions

    async def set(self, key: str, source: SessionSource, words: str) -> str:
        """Execute `/set` with the arguments `words`, and return the reply to the sender.

        Raises:
            StoreError: The setting could not be read or stored.
        """
        name, _, value = words.strip().partition(" ")
        name, value = name.casefold(), value.strip()
        session, _ = await self._sessions.of(key, source)
        if not name:
            return "\n".join([await self._line(item, session, source) for item in SETTINGS])
        if name not in SETTINGS:
            return f"There is no setting {name[:40]!r}. The settings are: {', '.join(SETTINGS)}."
        if not value:
            return await self._line(name, session, source)
        if not self.may_choose(name, source):
            return wording.NOT_ALLOWED
        try:
            chosen = None if value.casefold() == _DEFAULT else await self._chosen(name, value, source)
        except ConfigError as error:
            return f"Rejected: {error.message}; {error.remedy}."
        if name == "quiet":
            await self._sessions.choose_quiet(source, chosen)
        else:
            session = await self._sessions.changed(
                key,
                lambda one: replace(
                    one,
                    settings={item: known for item, known in one.settings.items() if item != name}
                    | ({} if chosen is None else {name: chosen}),
                ),
            )
        return await self._line(name, session, source)

    def may_choose(self, name: str, source: SessionSource) -> bool:
        """Return whether the sender may change the setting `name`.

        Only operators may change settings that cost money or affect other people.
        """
        is_others = name in ("model", "instructions") or (name == "quiet" and source.chat_type != "dm")
        return self._people.may(source, PersonRole.OPERATOR if is_others else PersonRole.MEMBER)

    async def _chosen(self, name: str, value: str, source: SessionSource) -> Json:
        """Convert the text that a person typed for a setting to the value to store.

        Raises:
            ConfigError: The setting does not accept this value.
        """
        choice = value.casefold()
        match name:
            case "busy" if choice in CHAT_POLICIES:
                return choice
            case "busy":
                raise _no_choice(value, f"choose one of {', '.join(CHAT_POLICIES)}")
            case "reset":
                # Convert a reset policy (`none`, `daily 4` or `idle 2h`) to the value to store.
                word, _, detail = choice.partition(" ")
                policy = None
                if word == "none" and not detail:
                    policy = SessionResetPolicy()
                elif word == "daily" and (not detail or _HOUR.fullmatch(detail)):
                    policy = SessionResetPolicy(mode=ResetMode.DAILY, at_hour=int(detail or 4))
                elif (
                    word == "idle"
                    and (span := parse_duration(detail))
                    and timedelta(minutes=1) <= span <= MAX_DURATION
                ):
                    policy = SessionResetPolicy(
                        mode=ResetMode.IDLE, idle_minutes=span // timedelta(minutes=1)
                    )
                if policy is None:
                    raise _no_choice(
                        value,
                        "write none, daily 4 (a new conversation each day at that "
                        "hour, 0 to 23) or idle 2h (after 2 hours without a message)",
                    )
                return {**structs.asdict(policy), "mode": policy.mode.value}
            case "quiet" if choice == QUIET_OFF:
                return QUIET_OFF
            case "quiet":
                return str(await asyncio.to_thread(QuietHours.parse, value))
            case "voice" if choice not in (VOICE_ON, VOICE_OFF):
                raise _no_choice(choice, f"choose {VOICE_ON} or {VOICE_OFF}")
            case "voice" if not self._config.speaks:
                raise _no_choice(choice, "ask the operator to set a speech endpoint (speech_url in [agent])")
            case "voice" if source.platform in ANSWER_ONLY:
                raise _no_choice(choice, "use voice in another channel: this channel accepts no files")
            case "voice":
                return choice
            case "model" if source.agent in self._config.programs:
                raise _no_choice(
                    value, "choose another agent first: the agent of this chat uses no model of the gateway"
                )
            case _ if len(value) > _MAX_LENGTH or not value.strip():
                raise _no_choice(value, f"write at most {_MAX_LENGTH} characters")
            case _:
                return value

    async def _line(self, name: str, session: ChatSession, source: SessionSource) -> str:
        rules = self._config.get_rules(source.platform, source.chat_id)
        match name:
            case "busy":
                mode = self._config.get_busy_mode(source.platform, source.chat_id).value
                value = session.settings.get("busy") or mode
            case "reset":
                policy = self._sessions.reset_policy(session, source)
                span = span_in_words(timedelta(minutes=policy.idle_minutes))
                daily, idle = f"daily at {policy.at_hour}", f"after {span} idle"
                value = {
                    ResetMode.NONE: "none",
                    ResetMode.DAILY: daily,
                    ResetMode.IDLE: idle,
                    ResetMode.BOTH: f"{daily}, and {idle}",
                }[policy.mode]
            case "quiet":
                quiet = await self._sessions.quiet_hours(source.address)
                value = QUIET_OFF if quiet is None else str(quiet)
            case "voice":
                value = session.settings.get(name) or VOICE_OFF
            case _:
                own = self._config.own_models.get(source.agent) if name == "model" else None
                usual = f"{own} (the agent's own)" if own else "as the agent's"
                value = session.settings.get(name) or getattr(rules, name) or usual
        shown = " ".join(str(value).split())
        return f"{name}: {shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + '…'}"


def _no_choice(value: str, remedy: str) -> ConfigError:
    return ConfigError(f"{value[:40]!r} is not a valid choice", value=value[:40], remedy=remedy)
