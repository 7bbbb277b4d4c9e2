"""The table of operations, as commands read it.

`make docs` writes `operations.json` from `postroom.app.operations`, whose functions commands must not load.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

TABLE: Final[Mapping[str, Mapping[str, Any]]] = json.loads(
    Path(__file__).with_name("operations.json").read_text(encoding="utf-8")
)
