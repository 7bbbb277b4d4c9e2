"""Settings under their import names: read from the environment at the first call after a clear."""

from postroom.app.config import Settings, load_settings

__all__ = ["Settings", "clear_settings_cache", "get_settings"]

_cache: dict[str, Settings] = {}


def get_settings() -> Settings:
    """Return the settings, read from the environment once.

    Raises:
        ConfigError: a setting is wrong; says which, and where it came from.
    """
    if "settings" not in _cache:
        _cache["settings"] = load_settings()
    return _cache["settings"]


def clear_settings_cache() -> None:
    """Forget the settings, so that the next call reads the environment again."""
    _cache.clear()
