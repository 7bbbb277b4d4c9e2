"""The operations table, in the form that commands read.

`make docs` generates `operations.json` from `postroom.app.operations`, which commands must not import.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

TABLE: Final[Mapping[str, Mapping[str, Any]]] = json.loads(
    Path(__file__).with_name("operations.json").read_text(encoding="utf-8")
)
