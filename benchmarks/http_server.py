"""A server whose MCP calls go the way that is asked for, behind the parser that is asked for."""

import asyncio
import contextlib
import socket
import sys
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from postroom.app import places
from postroom.app.config import load_settings
from postroom.app.connection import Connection
from postroom.app.serve import Site
from postroom.app.tokens import load_or_make_token
from postroom.app.wiring import Application


async def main(folder: Path, way: str, parser: str) -> None:
    """Serve until interrupted; say the address and the token on the first line."""
    settings = load_settings(environment={}, overrides={"data_dir": folder, "archive_enabled": False})
    token = load_or_make_token(places.token_file(folder))
    # With the protocol named, asyncio turns Nagle's algorithm off, as the product does.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    with contextlib.closing(Application.open(settings)) as application, listener:
        listener.bind(("127.0.0.1", 0))
        site = Site(application, token, short_way=way == "short")
        config = uvicorn.Config(
            site.app,
            http=Connection if parser == "httptools" else H11Protocol,
            log_config=None,
            access_log=False,
            ws="none",
            server_header=False,
            date_header=False,
        )
        host, port = listener.getsockname()
        print(f"http://{host}:{port}", token, flush=True)
        await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
