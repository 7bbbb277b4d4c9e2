"""Import the modules of `postroom.gateway` as `gateway`: `gateway.run` is the same module object.

A patch of `gateway.run` is therefore also a patch of `postroom.gateway.run`.

The distribution `postroom` does not contain this package, because an application may have its own package
`gateway`.
"""

import sys
from importlib import import_module

_NAMES = ("config", "session", "status", "platforms", "platforms.base", "run")

for _name in _NAMES:
    _module = import_module(f"postroom.gateway.{_name}")
    sys.modules[f"{__name__}.{_name}"] = _module
    if "." not in _name:
        globals()[_name] = _module
