"""A hook of MkDocs: links from a page to a file outside `docs/` lead to that file in the repository."""

import posixpath
import re
from typing import Any, Final

_LINK: Final = re.compile(r"(?<=\]\()(\.\./[^)\s]+)(?=\))")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: object) -> str:
    """Return the page with each such link rewritten to an address of the repository."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def replaced(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[1]))
        return found[1] if target.startswith("docs/") else f"{config.repo_url}/blob/main/{target}"

    return _LINK.sub(replaced, markdown)
