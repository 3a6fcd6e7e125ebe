"""Servers on loopback that take a connection and then say too little, for as long as the client stays."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

DRIP_S = 0.02
"""Time between two bytes: far below any timeout of a test."""
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
OPEN_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
WAYS = {
    "silent": (b"", b""),
    "drips its head": (b"", b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 100_000),
    "drips its body": (HEAD, b" " * 100_000),
    "drips a body without a length": (OPEN_HEAD, b" " * 100_000),
}
"""What a peer sends at once, and what byte by byte."""


@dataclass
class SlowPeer:
    """One server. `gone` is set once a client has closed its connection."""

    url: str
    asked: list[bytes] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)


@contextmanager
def slow_peer(way: str) -> Iterator[SlowPeer]:
    """A server that answers in one of `WAYS`."""
    listener = socket.create_server(("127.0.0.1", 0))
    peer, stop = SlowPeer(f"http://127.0.0.1:{listener.getsockname()[1]}"), threading.Event()
    at_once, slowly = WAYS[way]

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if head := connection.recv(65536):
                peer.asked.append(head)
            connection.settimeout(DRIP_S)
            connection.sendall(at_once)
            sent = 0
            while not stop.is_set():
                connection.sendall(slowly[sent : sent + 1])
                sent += 1
                with suppress(TimeoutError):
                    if not connection.recv(1):
                        break
        peer.gone.set()

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield peer
    finally:
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
