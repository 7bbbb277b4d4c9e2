"""Answers with the bytes of attachments so that a browser stores them and never runs them."""

from urllib.parse import quote

from starlette.responses import Response

from postroom.web.wording import one_line

_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What may be shown within a page; the type is read off the bytes, whatever their sender said."""

_SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Asked for each time: a recalled message takes its attachments with it.
    "Cache-Control": "private, no-cache",
}


def picture_type(content: bytes) -> str | None:
    """Return the media type of a picture that may be shown, or None."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for beginning, kind in _BEGINNINGS if content.startswith(beginning)), None)


def download(content: bytes, name: str, *, etag: str) -> Response:
    """Return bytes that a browser offers to store under a name."""
    headers = {"Content-Disposition": _disposition(name), "ETag": f'"{etag}"', **_SAFE}
    return Response(content, media_type="application/octet-stream", headers=headers)


def picture(content: bytes, media_type: str, *, etag: str) -> Response:
    """Return a picture to be shown within a page."""
    return Response(content, media_type=media_type, headers={"ETag": f'"{etag}"', **_SAFE})


def unchanged(*, etag: str) -> Response:
    """Return the answer to a browser that has these bytes already."""
    return Response(status_code=304, headers={"ETag": f'"{etag}"', **_SAFE})


def _disposition(name: str) -> str:
    """Name the file twice: for every browser in ASCII, and as it is for those that read RFC 5987."""
    shown = one_line(name).replace("/", "_").replace("\\", "_").strip(". ") or "attachment"
    plain = "".join(
        character if character.isascii() and character not in '"%;' else "_" for character in shown
    )
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(shown, safe='')}"
