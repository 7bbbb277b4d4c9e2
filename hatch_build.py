"""The page of the package: README with absolute links; an index has no other files of the repository."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface  # type: ignore[import-not-found]

_PICTURE = re.compile(r"(!\[[^\]]*\]\()(?!https?:)")
_LINK = re.compile(r"(\]\()(?!https?:|#)")


class PackagePage(MetadataHookInterface):  # type: ignore[misc]
    """Sets `readme`. A picture leads to its file, another link to its page in the repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the text and its type."""
        source = metadata["urls"]["Source"]
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = _PICTURE.sub(rf"\1{source}/raw/main/", text)
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": _LINK.sub(rf"\1{source}/blob/main/", text),
        }
