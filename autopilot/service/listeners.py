"""Listening sockets by `host:port`, and HTTP servers in threads of their own."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from autopilot.core.model.errors import InputError
from autopilot.service.hasty import HastyProtocol

STARTS_WITHIN_S = 10.0


def parse_listen(text: str, field: str) -> tuple[str, int]:
    """Host and port of `host:port`; port 0 takes a free one. Raises `InputError` naming `field`."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise InputError(f"{field}: {text!r} is not allowed; write host:port, for example 127.0.0.1:9470")
    return host, int(port)


def bind(text: str, field: str) -> tuple[socket.socket, str]:
    """A bound socket and its address as a URL. Raises `InputError` for an address in use or not ours."""
    host, port = parse_listen(text, field)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends without delay only if the socket names its protocol; a body would wait 40 ms behind its head
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise InputError(
            f"{field}: cannot listen on {text}: {error.strerror or error}; stop the other process, or give another "
            "port (0 takes a free one)"
        ) from error
    shown = f"[{host}]" if ":" in host else host
    return bound, f"http://{shown}:{bound.getsockname()[1]}"


@dataclass(frozen=True, slots=True)
class Certificates:
    """The certificate of a listener, and the authority of its accepted clients."""

    certificate: Path
    key: Path
    client_ca: Path

    def checked(self, field: str) -> dict[str, Any]:
        """The files for the server. Raises `InputError` for an unusable one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise InputError(
                f"{field}: {self.certificate} and {self.key}: not a certificate with its key: {error}; give both as PEM"
            ) from error
        try:
            context.load_verify_locations(self.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise InputError(f"{field}: {self.client_ca}: not a certificate: {error}; give it as PEM") from error
        return {
            "ssl_certfile": str(self.certificate),
            "ssl_keyfile": str(self.key),
            "ssl_ca_certs": str(self.client_ca),
            "ssl_cert_reqs": ssl.CERT_REQUIRED,
        }


class Listener:
    """One HTTP server in a thread."""

    def __init__(self, app: Any, listen: str, field: str, tls: Certificates | None = None) -> None:
        """Bind at once, so that a wrong address or certificate is an error before any start."""
        given = tls.checked(field) if tls is not None else {}
        self._socket, self.url = bind(listen, field)
        self.url = self.url if tls is None else self.url.replace("http:", "https:", 1)
        config = uvicorn.Config(
            app,
            http=HastyProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=2,
            proxy_headers=False,  # anybody could say any address, and no limit by address would hold
            lifespan="off",
            **given,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name=field, daemon=True)

    def start(self) -> None:
        """Return once it answers. Raises `InputError` if it does not start."""
        self._thread.start()
        end_s = time.monotonic() + STARTS_WITHIN_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > end_s:
                raise InputError(f"{self.url}: the HTTP server did not start; its log has the reason")
            time.sleep(0.01)

    def close(self) -> None:
        """Finish requests under way, then stop."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._socket.close()
