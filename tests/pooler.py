"""A real PgBouncer before a database: each transaction gets whichever session of the server is free.

It is Debian's package `pgbouncer`, or whatever program of that name is found. As root it runs as `nobody`.
"""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlsplit

UP_WITHIN = 30
SETTINGS = """\
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
"""


def missing_pooler() -> str | None:
    """Return why no pooler can be tested, or None."""
    return None if shutil.which("pgbouncer") else "no PgBouncer: install Debian's package `pgbouncer`"


@contextmanager
def a_pooler(dsn: str, more: Mapping[str, object] | None = None) -> Iterator[str]:
    """Start a pooler before a database, perhaps with `more` settings, and give its DSN."""
    there = urlsplit(dsn)
    with tempfile.TemporaryDirectory(prefix="postroom-pool-") as folder, socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        own = int(asked.getsockname()[1])
        asked.close()
        settings = Path(folder) / "pgbouncer.ini"
        settings.write_text(
            SETTINGS.format(host=there.hostname, port=there.port, user=there.username, own=own)
            + "".join(f"{name} = {value}\n" for name, value in (more or {}).items())
        )
        words = ["pgbouncer", str(settings)]
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            words[1:1] = ["-u", "nobody"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as pooler:
            said: deque[str] = deque(maxlen=50)
            is_up = Event()
            listening = Thread(target=_listen, args=(pooler, said, is_up), daemon=True)
            listening.start()
            try:
                if not is_up.wait(UP_WITHIN) or pooler.poll() is not None:
                    raise RuntimeError("PgBouncer did not start:\n" + "".join(said))
                yield there._replace(netloc=f"{there.username}@127.0.0.1:{own}").geturl()
            finally:
                pooler.kill()
                listening.join(UP_WITHIN)


def _listen(pooler: "subprocess.Popen[str]", said: deque[str], is_up: Event) -> None:
    """Read the pooler's output to its end: an unread pipe blocks it."""
    assert pooler.stderr is not None
    for line in pooler.stderr:
        said.append(line)
        if "process up" in line:
            is_up.set()
    is_up.set()
