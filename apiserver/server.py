"""The server: a request goes in, a response or a watch stream comes out."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

from apiserver.admission.base import Admission
from apiserver.audit import AuditLog
from apiserver.client import Client
from apiserver.errors import StatusError, WebhookError, bad_request, no_such_path, page_not_found
from apiserver.kinds.base import Authenticate, Call, Kinds, NameSuffix, NameUid, State
from apiserver.kinds.table import KINDS
from apiserver.options import is_watch
from apiserver.patching import check_write_options
from apiserver.reading import Reading
from apiserver.requests import Request, Response, WatchStream
from apiserver.routing import Route, route, verb
from apiserver.store import Store
from apiserver.timeline import Timeline
from apiserver.uptime import Uptime, no_answer
from apiserver.users import ADMIN, User
from apiserver.views import check_accept
from apiserver.writing import Writing

OPTIONS = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}
RETRY_S = 1.0  # after which a controller tries again what an absent webhook refused
Obj = dict[str, Any]
Pick = Callable[[Obj, list[str]], str]  # which of some nodes that are alike a pod gets
Authorize = Callable[[Call], None]  # raises StatusError 403
AuthorizePath = Callable[[Request, User], None]  # the same for paths that are no resources
Handler = Callable[["Server", Request, User], Response]


def first(_pod: Obj, nodes: list[str]) -> str:
    """The first by name."""
    return nodes[0]


class Server(State):
    """An API server on a timeline. Randomness is the given generator; `new_uid` and
    `new_suffix` override its uids and the ends of generated names.
    """

    def __init__(
        self,
        timeline: Timeline,
        rng: random.Random,
        *,
        first_version: int = 1,
        new_uid: NameUid | None = None,
        new_suffix: NameSuffix | None = None,
        pick: Pick | None = None,
    ) -> None:
        timeline.retry_after_s = lambda error: RETRY_S if isinstance(error, WebhookError) else None
        super().__init__(timeline, rng, Store(timeline, first_version), Kinds(KINDS), new_uid, new_suffix)
        self.admission = Admission()
        self.audit: AuditLog | None = None  # where writes are noted
        self.actors: list[object] = []  # the controllers of the cluster, which stand above the server
        self.uptime = Uptime(self)
        self.authenticate: Authenticate = lambda _request: ADMIN
        self.authorize: Authorize = lambda _call: None
        self.authorize_path: AuthorizePath = lambda _request, _user: None
        self.paths: dict[str, Handler] = {}  # what is not of the resource API, by path without its last slash
        self.prefixes: dict[str, Handler] = {}  # as `paths`, for everything under a path
        self.reading = Reading(self, self.uptime)
        self.writing: Writing = Writing(self, self.admission, self.reading)
        self.pick: Pick = pick or first

    def client(self, user: User, manager: str) -> Client:
        """A client in this process: its requests go the same way as those from outside."""
        return Client(self, user, manager)

    def handle(self, request: Request) -> Response | WatchStream:
        """Answer a request, with status 0 while the server is down. Never raises for the content of a request."""
        if self.uptime.down:
            return no_answer()
        wait_s = self.uptime.wait_s()
        try:
            found = self.answer(request)
        except StatusError as error:
            headers = {"content-type": "application/json"} | error.headers
            return Response(error.code, error.body, headers, max(error.delay_s, wait_s))
        if isinstance(found, Response):
            found.delay_s = max(found.delay_s, wait_s)
        return found

    def answer(self, request: Request) -> Response | WatchStream:
        """Answer a request; a refusal is raised. Raises StatusError."""
        user = request.user if request.user is not None else self.authenticate(request)
        path = route(request.path)
        if path is None:
            return self._other(request, user)
        call = self._call(request, user, path)
        if call.kind.deprecation:
            call.warnings.append(call.kind.deprecation)
        try:
            self.authorize(call)
            response = self._serve(call)
        except StatusError as error:
            if self.audit is not None:
                self.audit.note(call, self.timeline.now_s, error.code)
            if call.warnings:
                error.headers["warning"] = _warning(call.warnings)
            raise
        if self.audit is not None:
            self.audit.note(call, self.timeline.now_s, response.status)
        response.headers.setdefault("content-type", "application/json")
        if call.warnings:
            response.headers["warning"] = _warning(call.warnings)
        return response

    def _other(self, request: Request, user: User) -> Response:
        self.authorize_path(request, user)
        path = request.path.rstrip("/") or "/"
        handler = self.paths.get(path)
        if handler is None:
            handler = next((each for prefix, each in self.prefixes.items() if path.startswith(prefix)), None)
        if handler is None:
            raise page_not_found()
        return handler(self, request, user)

    def _call(self, request: Request, user: User, path: Route) -> Call:
        kind = self.kinds.find(path.group, path.version, path.plural)
        if kind is None or (path.namespace and not kind.namespaced):
            raise no_such_path() if self.kinds.has_builtin(path.group, path.version) else page_not_found()
        watch = is_watch(request.query)
        if not watch:
            check_timeout(request.query.get("timeout", ""))
        name = verb(request.method, path.name, watch=watch)
        if name is None:
            raise method_not_allowed()
        if kind.namespaced and not path.namespace and name not in {"list", "watch"}:
            if kind.custom:
                raise page_not_found()
            raise no_such_path() if path.name else method_not_allowed()
        if name in OPTIONS:
            check_write_options(OPTIONS[name], request.query)
        dry_run = name in OPTIONS and request.query.get("dryRun") == "All"
        agent = request.headers.get("user-agent", "").partition("/")[0]
        manager = request.query.get("fieldManager") or agent or "unknown"
        return Call(request, user, name, kind, path.namespace, path.name, path.subresource, dry_run, manager)

    def _serve(self, call: Call) -> Response | WatchStream:
        kind = call.kind
        if call.subresource:
            subresource = kind.subresources.get(call.subresource)
            if subresource is None:
                raise no_such_path()
            if subresource.handler is not None:
                return subresource.handler(self, call)
            if call.verb not in subresource.verbs:
                raise method_not_allowed()
        elif call.verb not in kind.verbs:
            raise method_not_allowed()
        if call.verb in {"update", "patch"} and not call.name:
            raise method_not_allowed()
        if call.verb == "create" and call.name and not call.subresource:
            raise method_not_allowed()
        check_accept(call.request.accept)
        if kind.answer is not None:
            return kind.answer(self, call)
        if call.verb in {"create", "update", "patch", "delete"} and kind.namespaced and not call.namespace:
            raise no_such_path() if call.verb != "create" else method_not_allowed()
        verbs: dict[str, Callable[[Call], Response | WatchStream]] = {
            "get": self.reading.get,
            "list": self.reading.collection,
            "watch": self.reading.watch,
            "create": self.writing.create,
            "update": self.writing.update,
            "patch": self.writing.patch,
            "delete": self.writing.delete,
            "deletecollection": self.writing.delete_collection,
        }
        return verbs[call.verb](call)


def _warning(texts: list[str]) -> str:
    """The header for some warnings, each once."""
    escaped = [text.replace("\\", "\\\\").replace('"', '\\"') for text in dict.fromkeys(texts)]
    return ", ".join(f'299 - "{text}"' for text in escaped)


def check_timeout(text: str) -> None:
    """The query parameter `timeout`, a Go duration. Raises StatusError 400 for other texts, 504 below 1 us."""
    if not text:
        return
    if text != "0" and re.fullmatch(r"([+-]?(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h))+", text) is None:
        raise bad_request(f'invalid timeout specified in the request URL - time: invalid duration "{text}"')
    if re.fullmatch(r"\d+ns", text):
        message = "Timeout: request did not complete within the allotted timeout"
        error = StatusError(504, "Timeout", message, {}, {"content-type": "text/plain; charset=utf-8"})
        del error.body["kind"], error.body["apiVersion"]
        raise error


def method_not_allowed() -> StatusError:
    """405."""
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})
