"""Renames a recording: objects, namespaces, uids and times, everywhere alike, by a seed.

A server that knew a name, a uid or a day of the recordings would differ after it. Names get a drawn ending, so that
lists keep their order. Names that are words of messages or of the API too (without a digit and a hyphen, or like `v1`)
stay.
"""

from __future__ import annotations

import base64
import json
import random
import re
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from apiserver.routing import route
from tests.kube.replay.aliases import family_of
from tests.kube.replay.recording import parse, sightings

Obj = dict[str, Any]
UID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
STAYS = re.compile(r"v\d+((alpha|beta)\d+)?|kube-.*|system-.*|.*\.crt|default|node-.*|app:.*")
LETTERS = "bcdfghjkmnpqrtvwxz"


def rename(raw: Obj, world: str, seed: int) -> tuple[Obj, str]:
    """A recording, and the text of its world file, with other names, uids and times."""
    rng = random.Random(seed)
    ending = "-" + "".join(rng.choices(LETTERS, k=3))
    shift = timedelta(days=rng.randrange(3, 300), seconds=rng.randrange(86_400))
    names = sorted(_names(raw), key=len, reverse=True)
    pattern = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(map(re.escape, names))})(?![A-Za-z0-9])") if names else None
    uids: dict[str, str] = {}

    def uid(found: re.Match[str]) -> str:
        if len(set(found[0].replace("-", ""))) == 1:  # made up by the script: 11111111-1111-...
            return found[0]
        return uids.setdefault(found[0], str(UUID(int=rng.getrandbits(128), version=4)))

    def text(value: str) -> str:
        value = TIME.sub(lambda found: (datetime.fromisoformat(found[0]) + shift).isoformat(), UID.sub(uid, value))
        return pattern.sub(lambda found: found[0] + ending, value) if pattern is not None else value

    return _renamed(raw, text), text(world)


def _renamed(value: Any, text: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {text(name): _renamed(each, text, name) for name, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, text, key) for each in value]
    if not isinstance(value, str) or key in {"topic", "why", "about", "volatile"}:
        return value
    if key == "name" and " " in value:  # the name of a step
        return value
    return _token(value, text) if key == "continue" else text(value)


def _token(token: str, text: Any) -> str:
    """A continue token holds names as well."""
    try:
        state = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except ValueError:
        return token
    state["start"] = text(state["start"])
    return base64.urlsafe_b64encode(json.dumps(state, separators=(",", ":")).encode()).decode().rstrip("=")


def _names(raw: Obj) -> set[str]:
    """The names and namespaces of objects that are no words."""
    recording = parse(raw)
    found = {part for each in sightings(recording) for part in each.key[1:] if family_of(*each.key[1:]) is None}
    found |= {each.key[1] for each in sightings(recording)}
    for step in recording.steps:
        at = route(step.request.get("path", "/"))
        if at is not None:
            found |= {at.namespace} | ({at.name} if family_of("", at.name) is None else set())
    return {name for name in found if len(name) > 1 and re.search(r"[-\d]", name) and not STAYS.fullmatch(name)}
