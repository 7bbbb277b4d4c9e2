"""The channels of postroom that have addresses, as the gateway makes them."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from postroom.app.config import Settings
from postroom.app.gateway_config import load_gateway
from postroom.app.gateway_wiring import make_adapter
from postroom.concurrency import SystemTimer
from postroom.contracts.clock import SystemClock
from postroom.gateway.platforms import ADAPTERS, load_adapter_class
from postroom.gateway.platforms.base import BasePlatformAdapter
from postroom.gateway.session import Platform

_FILE: Final = """
[agent]
base_url = "http://127.0.0.1:9/v1"
model = "m"
[platforms.web]
token_env = "SECRET"
[platforms.api_server]
api_key_env = "SECRET"
[platforms.telegram]
token_env = "BOT"
webhook_secret_env = "SECRET"
webhook_url = "https://example.org/channels/telegram"
[platforms.slack]
token_env = "SLACK"
signing_secret_env = "SECRET"
[platforms.webhook.routes.ci]
secret_env = "SECRET"
"""
"""Every channel that has routes, with the settings on which they depend."""
_VARIABLES: Final = {"SECRET": "s" * 32, "BOT": "4711:abc", "SLACK": "xoxb-1"}


def with_addresses() -> Mapping[Platform, BasePlatformAdapter]:
    """Return the adapters of postroom's channels that have routes.

    Raises:
        LookupError: The file was not read. It lacks a channel, or settings on which the routes depend.
    """
    with TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder))
        (settings.data_dir / "gateway.toml").write_text(_FILE, encoding="utf-8")
        told = load_gateway(settings, environment={**_VARIABLES, "HOME": folder})
        if told is None:
            raise LookupError("the file of channels was not read")
        clock, timer = SystemClock(), SystemTimer()
        made = {
            platform: make_adapter(told.path, platform, config, clock=clock, timer=timer)
            for platform, config in told.gateway.platforms.items()
        }
    found = {
        platform: made[platform] for platform in ADAPTERS if platform in made and made[platform].routes()
    }
    wanted = [one for one in ADAPTERS if load_adapter_class(one).routes is not BasePlatformAdapter.routes]
    if missing := [one.value for one in wanted if one not in found]:
        raise LookupError(f"docs/from_code/channels.py has no settings for the routes of {missing}")
    return found
