"""What is known of each chat platform before its adapter is loaded: where that is, and the names it reads.

A platform's own module says what its names mean. Here stands only what the reader of `gateway.toml` needs: so
that a wrong name is refused with the nearest right one, and a secret is never taken from the file itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from postroom.gateway.session import Platform

_ADAPTERS: Final = "postroom.gateway.platforms"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformNames:
    """The names of one platform's table."""

    module: str
    adapter: str
    extras: frozenset[str]
    secrets: frozenset[str] = frozenset()
    """Extras that are secrets."""
    also: Mapping[str, str] = field(default_factory=dict)
    """What `token` or `api_key` is called by people of that platform: the same, by another name."""
    files: frozenset[str] = frozenset()
    """Extras that name a file; a relative one begins at the folder of `gateway.toml`."""
    at_root: bool = False
    """Whether its routes are at the root of our server, and not below `/channels`."""
    largest_body: int = 1024 * 1024
    """Bytes that a request to its routes may have."""

    @property
    def secret_names(self) -> frozenset[str]:
        """Every name of its table that stands for a secret."""
        return frozenset({"token", "api_key", *self.also, *self.secrets})


def _names(extras: str, *, module: str, adapter: str, **more: object) -> PlatformNames:
    known = frozenset(extras.split())
    return PlatformNames(module=f"{_ADAPTERS}.{module}", adapter=adapter, extras=known, **more)  # type: ignore[arg-type]  # by name


PLATFORMS: Final[Mapping[Platform, PlatformNames]] = MappingProxyType(
    {
        Platform.TELEGRAM: _names(
            "base_url webhook_url delete_webhook poll_seconds proxy timeout_ms",
            module="telegram",
            adapter="TelegramAdapter",
            also={"webhook_secret": "api_key"},
        ),
        Platform.DISCORD: _names(
            "base_url cdn_url backfill backfill_limit backfill_minutes channels max_held timeout_seconds",
            module="discord",
            adapter="DiscordAdapter",
        ),
        Platform.SLACK: _names(
            "signing_secret base_url command reply_in_threads unfurl proxy timeout_ms",
            module="slack",
            adapter="SlackAdapter",
            secrets=frozenset({"signing_secret"}),
            also={"app_token": "api_key"},
        ),
        Platform.MATRIX: _names(
            "base_url user_id sync_file poll_ms command_prefix",
            module="matrix",
            adapter="MatrixAdapter",
            files=frozenset({"sync_file"}),
        ),
        Platform.EMAIL: _names(
            "address name user authserv_id folder subject ca_file imap_host imap_port imap_security smtp_host"
            " smtp_port smtp_security smtp_user poll_ms max_age_days max_bytes timeout_ms allow_plain",
            module="email",
            adapter="EmailAdapter",
            also={"password": "token", "smtp_password": "api_key"},
            files=frozenset({"ca_file"}),
        ),
        Platform.WEBHOOK: _names("routes callback_timeout_s", module="webhook", adapter="WebhookAdapter"),
        Platform.WEB: _names(
            "name people title", module="web", adapter="WebAdapter", at_root=True, largest_body=20_000_000
        ),
        Platform.API_SERVER: _names(
            "timeout_s model max_image_bytes",
            module="api_server",
            adapter="ApiServerAdapter",
            at_root=True,
            largest_body=10_000_000,
        ),
    }
)

NESTED_SECRETS: Final[Mapping[tuple[Platform, str], frozenset[str]]] = MappingProxyType(
    {
        (Platform.WEBHOOK, "routes"): frozenset({"secret", "callback_secret"}),
        (Platform.WEB, "people"): frozenset({"token"}),
    }
)
"""Extras that are tables of tables, and the secrets within each of the inner ones."""
