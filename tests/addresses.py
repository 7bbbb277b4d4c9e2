"""Addresses for servers that are started, killed and started again in tests."""

import random
import socket
from contextlib import closing

Address = tuple[str, int]
PORTS = range(20_000, 32_000)
"""Below those that the system gives to connections: one of them would have the port while its server is down."""


def free_address(host: str = "127.0.0.1") -> Address:
    """Return an address that nobody listens on at this moment."""
    for port in random.sample(PORTS, len(PORTS)):
        with closing(socket.socket()) as asked:
            try:
                asked.bind((host, port))
            except OSError:
                continue  # somebody has it
            return host, port
    raise RuntimeError("no port is free")
