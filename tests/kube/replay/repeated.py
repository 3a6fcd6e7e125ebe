"""Steps that stand for several equal requests: `repeated` is their number, `until` the time of the last."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from tests.kube.replay.recording import Step

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(?=Z)")


def repetitions(step: Step) -> Iterator[float]:
    """Seconds after the first request at which a write is sent again; reads change nothing."""
    count, until_s = int(step.raw.get("repeated") or 1), float(step.raw.get("until") or step.t_s)
    is_write = step.request["method"] != "GET" and "dryRun" not in (step.request.get("query") or {})
    if is_write and 200 <= step.status < 300:
        yield from ((until_s - step.t_s) * number / (count - 1) for number in range(1, count))


def moved(value: Any, passed_s: float) -> Any:
    """A body that is sent later: its times with microseconds are those of the sending."""
    if isinstance(value, dict):
        return {name: moved(each, passed_s) for name, each in value.items()}
    if isinstance(value, list):
        return [moved(each, passed_s) for each in value]
    if isinstance(value, str):
        later = timedelta(seconds=passed_s)
        return TIME.sub(
            lambda found: (datetime.fromisoformat(found[0]) + later).isoformat(timespec="microseconds"), value
        )
    return value
