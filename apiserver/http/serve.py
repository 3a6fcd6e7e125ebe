"""Serve on a socket, with or without TLS, in a thread; the kubeconfig of it."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import logging
import shutil
import socket
import tempfile
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import uvicorn
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from apiserver.http.app import Shell, application
from apiserver.http.clock import LiveClock
from apiserver.http.faults import Faults
from apiserver.server import Server

STOP_S = 3  # open watches are cut after this long


class _Planned(logging.Filter):
    """Drops the error about connections that are cut at the end: a watch has no end of its own."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "timeout graceful shutdown exceeded" not in record.getMessage()


PLANNED = _Planned()


class Stopping(uvicorn.Server):
    """Closes the connections that are left when the time to end them is over.

    One that is accepted while the server stops is not asked to end, and nothing else would close it.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End requests, then close what is left."""
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # the loop closes them in its next turn


@dataclass
class Running:
    """A server that listens. Use it as a context manager, or call `close`."""

    shell: Shell
    host: str
    port: int
    certificate: bytes | None  # PEM of the self-signed certificate; None without TLS
    _uvicorn: uvicorn.Server
    _thread: threading.Thread
    _folder: Path

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{'https' if self.certificate else 'http'}://{self.host}:{self.port}"

    @property
    def clock(self) -> LiveClock:
        """Its time: hold it, or change its speed."""
        return self.shell.clock

    def kubeconfig(self, token: str = "admin") -> str:  # noqa: S107 - the server is one of tests
        """A kubeconfig for it, as YAML."""
        cluster: dict[str, str] = {"server": self.url}
        if self.certificate:
            cluster["certificate-authority-data"] = base64.b64encode(self.certificate).decode()
        name = "gpu-autopilot"
        return yaml.dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": name, "cluster": cluster}],
                "users": [{"name": name, "user": {"token": token}}],
                "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
                "current-context": name,
            },
            Dumper=yaml.CSafeDumper,
            sort_keys=False,
        )

    def close(self) -> None:
        """Stop listening; open watches end."""
        self._uvicorn.should_exit = True
        self._thread.join()
        self.clock.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(
    server: Server,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: bool = False,
    speed: float = 1.0,
    faults: Faults | None = None,
    clock: LiveClock | None = None,
) -> Running:
    """Listen on `port` (0: any free one) and let time run at `speed`, or as `clock` says.

    Raises OSError where the port is taken.
    """
    listener = socket.create_server((host, port))
    # connections inherit it; asyncio sets it only where the socket names its protocol, and a body that follows its head
    # would wait 40 ms for the client's acknowledgement
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    folder = Path(tempfile.mkdtemp(prefix="apiserver-"))
    certificate = self_signed(folder, host) if tls else None
    shell = Shell(server, clock or LiveClock(server.timeline, speed), faults or Faults())
    config = uvicorn.Config(
        application(shell),
        log_level="critical",
        lifespan="off",
        access_log=False,
        date_header=False,  # the server's own time, which the application states
        timeout_graceful_shutdown=STOP_S,
        ssl_certfile=str(folder / "cert.pem") if tls else None,
        ssl_keyfile=str(folder / "key.pem") if tls else None,
    )
    logging.getLogger("uvicorn.error").addFilter(PLANNED)
    listening = Stopping(config)
    thread = threading.Thread(target=listening.run, kwargs={"sockets": [listener]}, name="apiserver-http", daemon=True)
    shell.clock.start()
    thread.start()
    return Running(shell, host, listener.getsockname()[1], certificate, listening, thread, folder)


def self_signed(folder: Path, host: str) -> bytes:
    """Write cert.pem and key.pem for a host into a folder; the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpu-autopilot test server")])
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    try:
        names.append(x509.IPAddress(ipaddress.ip_address(host)))
    except ValueError:
        names.append(x509.DNSName(host))
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate = built.public_bytes(serialization.Encoding.PEM)
    (folder / "cert.pem").write_bytes(certificate)
    key_file = folder / "key.pem"
    key_file.touch(mode=0o600)
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate
