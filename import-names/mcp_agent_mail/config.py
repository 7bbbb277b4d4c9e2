"""The settings, for callers of `mcp_agent_mail.config`."""

from postroom.app.config import Settings, load_settings

__all__ = ["Settings", "clear_settings_cache", "get_settings"]

_cache: dict[str, Settings] = {}


def get_settings() -> Settings:
    """Return the settings. The first call reads them from the environment.

    Raises:
        ConfigError: A setting is wrong. The error names the setting and its source.
    """
    if "settings" not in _cache:
        _cache["settings"] = load_settings()
    return _cache["settings"]


def clear_settings_cache() -> None:
    """Clear the settings cache, so that the next call reads the environment again."""
    _cache.clear()
