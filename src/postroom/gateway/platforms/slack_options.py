"""What Slack's adapter is set to, read and checked once; the module `slack` lists the names."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from postroom.contracts.errors import ConfigError
from postroom.gateway.config import PlatformConfig
from postroom.gateway.platforms.slack_wire import Rules

if TYPE_CHECKING:
    from postroom.gateway.platforms.slack_api import SlackApi

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_secret(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_command(value: Any) -> bool:
    return isinstance(value, str) and len(value) > 1 and value.startswith("/") and not value[1:].count("/")


def _is_wait(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 600_000


def _is_address(value: Any) -> bool:
    try:
        url = urlsplit(value) if isinstance(value, str) else urlsplit("")
        local = url.scheme == "http" and url.hostname in _LOOPBACK
        return (url.scheme == "https" and bool(url.hostname)) or (local and url.port != 0)
    except ValueError:
        return False


def _is_proxy(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(("http://", "https://"))


_EXTRAS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "base_url": (_is_address, "an https address, or http on loopback"),
    "signing_secret": (_is_secret, "the app's signing secret"),
    "command": (_is_command, "the name of a slash command, for instance /postroom"),
    "reply_in_threads": (_is_flag, "true or false"),
    "unfurl": (_is_flag, "true or false"),
    "proxy": (_is_proxy, "the address of an HTTP proxy"),
    "timeout_ms": (_is_wait, "milliseconds from 1 to 600000"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackOptions:
    """The settings of one bot. Secrets are never shown."""

    token: str = field(repr=False)
    signing_secret: str | None = field(default=None, repr=False)
    base_url: str = "https://slack.com/api"
    unfurl: bool = False
    proxy: str | None = field(default=None, repr=False)
    timeout_ms: int = 30_000
    rules: Rules

    @classmethod
    def read(cls, config: PlatformConfig) -> "SlackOptions":
        """Return what a configuration says.

        Raises:
            ConfigError: a token is missing or stands in the other's place, or an extra is wrong.
        """
        token, app_token, extra = config.token, config.api_key, dict(config.extra)
        if not token or not token.strip() or token.startswith("xapp-"):
            raise ConfigError(
                "Slack needs a bot token", remedy="set `token` to the token that begins with xoxb-"
            )
        if app_token is not None and (not app_token.strip() or app_token.startswith("xoxb-")):
            raise ConfigError(
                "this is no app token", remedy="set `api_key` to the token that begins with xapp-"
            )
        for name, value in extra.items():
            if name not in _EXTRAS:
                raise ConfigError(
                    f"Slack knows no extra {name!r}", value=name, remedy=f"use one of {', '.join(_EXTRAS)}"
                )
            fits, meant = _EXTRAS[name]
            if not fits(value):
                raise ConfigError(f"the extra {name!r} is malformed", remedy=f"give {meant}")
        if app_token is None and "signing_secret" not in extra:
            raise ConfigError(
                "Slack has no way to reach us",
                remedy="set `api_key` to the app token (Socket Mode), or the extra `signing_secret` (HTTP)",
            )
        rules = {name: extra.pop(name) for name in ("command", "reply_in_threads") if name in extra}
        return cls(token=token, rules=Rules(**rules), **extra)

    def api(self) -> "SlackApi":
        """Return the Web API for this bot.

        It loads libraries and certificates, so that it belongs outside of the event loop.

        Raises:
            MissingExtra: a library is not installed.
        """
        from postroom.gateway.platforms import slack_socket  # noqa: F401 - to be loaded here and not later
        from postroom.gateway.platforms.slack_api import Network, SlackApi, tls_context

        network = Network(
            base_url=self.base_url,
            timeout_ms=self.timeout_ms,
            proxy=self.proxy,
            tls=tls_context() if self.base_url.startswith("https:") else None,
        )
        return SlackApi(network, self.token)
