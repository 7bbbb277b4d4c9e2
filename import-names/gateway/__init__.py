"""The import names of the gateway: `gateway.run` and others are the very modules of `postroom.gateway`.

The distribution `postroom` does not have this package, because an application may have one of this name.

Whatever is set or patched on one is so on the other, for there is only one.
"""

import sys
from importlib import import_module

_NAMES = ("config", "session", "status", "platforms", "platforms.base", "run")

for _name in _NAMES:
    _module = import_module(f"postroom.gateway.{_name}")
    sys.modules[f"{__name__}.{_name}"] = _module
    if "." not in _name:
        globals()[_name] = _module
