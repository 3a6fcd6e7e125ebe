"""Input and output of the server: requests, responses, watch streams."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from apiserver.plain_json import encode
from apiserver.users import User

Obj = dict[str, Any]
JSON = "application/json"
PATCHES = {
    "application/json-patch+json": "json",
    "application/merge-patch+json": "merge",
    "application/strategic-merge-patch+json": "strategic",
    "application/apply-patch+yaml": "apply",
    "application/apply-patch+cbor": "apply",
}


def dumped(value: Any) -> bytes:
    """JSON without spaces."""
    return encode(value)


@dataclass(slots=True)
class Request:
    """One request. `body` is bytes from the network, or an object from a client in this process."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    body: Any = None
    user: User | None = None  # known already; None: the server finds out from the headers

    @property
    def content_type(self) -> str:
        """Media type of the body, without parameters."""
        return self.headers.get("content-type", JSON).partition(";")[0].strip().lower()

    @property
    def accept(self) -> str:
        """The forms wanted by the client."""
        return self.headers.get("accept", JSON)


@dataclass(slots=True)
class Items:
    """A list before it is joined: its head, and the encoded form of each item."""

    head: Obj
    encoded: Callable[[], Iterator[bytes]]
    items: Callable[[], list[Obj]]

    def plain(self) -> Obj:
        """The list as one object."""
        return self.head | {"items": self.items()}

    def chunks(self) -> Iterator[bytes]:
        """The list as JSON, in pieces."""
        yield dumped(self.head)[:-1] + b',"items":['
        for number, item in enumerate(self.encoded()):
            yield b"," + item if number else item
        yield b"]}\n"


@dataclass(slots=True)
class Response:
    """An answer. `delay_s` is the time of the server for it (the wait for a version still to come)."""

    status: int
    body: Any = None  # an object, Items, or a str (text/plain)
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0

    def plain(self) -> Any:
        """The body as an object or text."""
        return self.body.plain() if isinstance(self.body, Items) else self.body

    def chunks(self) -> Iterable[bytes]:
        """The body as bytes."""
        if isinstance(self.body, Items):
            return self.body.chunks()
        if isinstance(self.body, str):
            return (self.body.encode(),)
        return (dumped(self.body) + b"\n",) if self.body is not None else ()


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event of a stream: its time of sending (microseconds since 1970), its type, and its object or its bytes."""

    t_us: int
    type: str
    object: Callable[[], Obj]
    encoded: Callable[[], bytes]

    def line(self) -> bytes:
        """As it goes over the wire."""
        return b'{"type":"' + self.type.encode() + b'","object":' + self.encoded() + b"}\n"


class WatchStream:
    """The answer to a watch: events come until it is closed. `wake` is called for each new one."""

    status = 200

    def __init__(self) -> None:
        self.headers: dict[str, str] = {"content-type": JSON}
        self.closed = False
        self.wake: Callable[[], None] = lambda: None
        self._events: deque[WatchEvent] = deque()
        self._endings: list[Callable[[], None]] = []

    def push(self, event: WatchEvent) -> None:
        """Add an event."""
        if not self.closed:
            self._events.append(event)
            self.wake()

    def take(self) -> list[WatchEvent]:
        """The events since the last call."""
        taken = list(self._events)
        self._events.clear()
        return taken

    def at_end(self, ending: Callable[[], None]) -> None:
        """Call `ending` once the stream is closed by either side."""
        self._endings.append(ending)

    def close(self) -> None:
        """No more events; those already there can still be taken."""
        if not self.closed:
            self.closed = True
            for ending in self._endings:
                ending()
            self.wake()
