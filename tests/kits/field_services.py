"""Plays what inference servers show in tests/data/field to the collector of services.

A `.prom` file holds expositions: `# target name=value ...` begins a server with these labels, `rate:5` counts 5 a
second, and `HIST name{labels} value` is a histogram; half of its values are at most 0.5 s. A real Prometheus
answers. Its history is written before it starts, so no time passes. A `.yaml` file holds the answers themselves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml

from autopilot.core.model.records import ServiceSignals
from collectors.slo.collector import WINDOW_S, SloCollector
from tests.kits.field_kit import FOLDER
from tests.kits.prometheus_kit import prometheus, write_history

EVERY_S, AHEAD_S = 20.0, 600.0
"""Between two samples, and from the start of Prometheus to the last one."""
_EDGES = (("0.5", 0.5), ("1.0", 0.9), ("5.0", 1.0), ("+Inf", 1.0))

Found = Mapping[str, Mapping[str, float]]
"""Service -> measure -> value."""


def servers(text: str) -> Iterator[tuple[str, str, str]]:
    """(name, labels, value) of each series of an exposition, with the labels of its target."""
    own = ""
    for line in text.splitlines():
        if line.startswith("# target "):
            own = ",".join(f'{name}="{value}"' for name, value in (each.split("=") for each in line.split()[2:]))
        elif line.strip():
            head, _, value = line.rpartition(" ")
            name, _, inner = head.removeprefix("HIST ").rstrip("}").partition("{")
            name, labels = name.strip(), ",".join(filter(None, (inner, own)))
            for edge, share in _EDGES if head.startswith("HIST ") else ():
                yield f"{name}_bucket", f'{labels},le="{edge}"', _times(value, share)
            for each in (f"{name}_count", f"{name}_sum") if head.startswith("HIST ") else (name,):
                yield each, labels, value


def _times(value: str, share: float) -> str:
    rate, number = value.startswith("rate:"), float(value.removeprefix("rate:")) * share
    return f"rate:{number}" if rate else f"{number}"


@contextmanager
def answering(tool: Callable[[str], str], folder: Path, cases: Sequence[str]) -> Iterator[str]:
    """A Prometheus that has seen the servers of these files for two windows, each with the label `file`."""
    now_s = time.time()
    first_s, lines = now_s - 2 * WINDOW_S, []
    for case in cases:
        for name, labels, value in servers((FOLDER / case).read_text("utf-8")):
            rate, number = value.startswith("rate:"), float(value.removeprefix("rate:"))
            for step in range(int((now_s + AHEAD_S - first_s) / EVERY_S)):
                at_s = step * EVERY_S
                shown = number * (1000.0 + at_s) if rate else number
                lines.append(f'{name}{{{labels},file="{case}"}} {shown} {first_s + at_s:.3f}')
    write_history(tool("promtool"), folder, "\n".join([*lines, "# EOF", ""]))
    with prometheus(tool("prometheus"), folder, {"scrape_configs": []}) as url:
        yield url


def measured(collector: SloCollector, now_s: float = 0.0) -> tuple[Found, list[str]]:
    """What a collector measures of each service, and the reasons of its gaps."""
    batch = collector.collect(now_s)
    columns = [name for name in ServiceSignals.__slots__ if name not in {"service", "latencies"}]
    rows = batch.services.service.tolist() if batch.services is not None else []
    found = {
        name: {column: float(getattr(batch.services, column)[row]) for column in columns}
        for row, name in enumerate(rows)
    }
    return found, [gap.reason for gap in batch.gaps]


def stub(spec: Mapping[str, Any], turn: Callable[[], int]) -> Callable[..., bytes]:
    """The answers of a `.yaml` file: of the first text that a query contains, times the share of the round."""

    def answer(_session: object, _url: str, _timeout_s: float, _limit: int, params: Mapping[str, str]) -> bytes:
        share, more = spec["rounds"][turn()]
        query = unquote(params.get("query", ""))
        values = [value * share for text, value in spec["answers"].items() if text in query][:1]
        result = [{"metric": spec["labels"], "value": [1, str(value)]} for value in values]
        return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}, **more}).encode()

    return answer


def answers_of(case: str) -> dict[str, Any]:
    """The content of a `.yaml` file of answers."""
    found: dict[str, Any] = yaml.safe_load((FOLDER / case).read_text("utf-8"))
    return found


CASES = (
    "23d-renamed-gateway",
    "23e-prefixed-servers",
    "23f-sglang",
    "23g-waiting-for-ever",
    "37-scraped-twice",
    "prefill-decode",
    "servers-of-others",
    "stuck-servers",
)
PROM = [str(each.relative_to(FOLDER)) for case in CASES for each in sorted((FOLDER / case).glob("*.prom"))]
"""All files of expositions of inference servers."""
