"""Where messages go in tests: a webhook over HTTP, and a mail server that speaks SMTP with STARTTLS and AUTH PLAIN."""

from __future__ import annotations

import json
import ssl
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

from tests.kits.certificates import Pair


@dataclass
class Webhook:
    """What came to a webhook, in order."""

    url: str = ""
    status: int = 200
    came: SimpleQueue[dict[str, Any]] = field(default_factory=SimpleQueue)


@contextmanager
def webhook() -> Iterator[Webhook]:
    """A webhook that listens on loopback."""
    made = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.came.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(made.status)
            self.send_header("Location", made.url)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with _served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        made.url = f"http://127.0.0.1:{port}/services/T0/B0/secret-of-the-webhook"
        yield made


@dataclass
class MailServer:
    """Which mails came, each with its recipient, whether it was encrypted, and the user with the password."""

    port: int = 0
    refuses: bool = False
    came: SimpleQueue[tuple[EmailMessage, str, bool, str]] = field(default_factory=SimpleQueue)


@contextmanager
def mail_server(certificate: Pair | None = None) -> Iterator[MailServer]:
    """A mail server on loopback; without a certificate it offers no STARTTLS."""
    made = MailServer()

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            secure, user, to = False, "", ""
            self._say("220 ready")
            while line := self.rfile.readline().decode().rstrip("\r\n"):
                verb, _, rest = line.partition(" ")
                match verb.upper():
                    case "EHLO":
                        offers = ["AUTH PLAIN"] if secure or certificate is None else ["STARTTLS"]
                        self._say("250-mail\r\n" + "".join(f"250-{each}\r\n" for each in offers) + "250 SIZE 100000")
                    case "STARTTLS":
                        self._say("220 go")
                        assert certificate is not None
                        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                        context.load_cert_chain(certificate.certificate, certificate.key)
                        self.connection = context.wrap_socket(self.connection, server_side=True)
                        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
                        secure = True
                    case "AUTH":
                        user = b64decode(rest.partition(" ")[2]).decode().strip("\0").replace("\0", ":")
                        self._say("235 welcome")
                    case "RCPT":
                        to = rest.partition(":")[2].partition(" ")[0].strip("<>")
                        self._say("550 unknown user" if made.refuses else "250 ok")
                    case "DATA":
                        self._say("354 end with a dot")
                        lines = []
                        while (part := self.rfile.readline()) != b".\r\n":
                            lines.append(part)
                        mail = message_from_bytes(b"".join(lines), EmailMessage, policy=policy.default)
                        made.came.put((mail, to, secure, user))
                        self._say("250 taken")
                    case "QUIT":
                        self._say("221 bye")
                        return
                    case _:
                        self._say("250 ok")

        def finish(self) -> None:
            super().finish()
            self.connection.close()  # the encrypted one: the server knows the plain one alone

        def _say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    ThreadingTCPServer.allow_reuse_address = True
    with _served(ThreadingTCPServer(("127.0.0.1", 0), Handler)) as port:
        made.port = port
        yield made


@contextmanager
def _served(server: ThreadingTCPServer | ThreadingHTTPServer) -> Iterator[int]:
    """The port of a server that runs in a thread."""
    server.daemon_threads = True
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
