"""Direct scrape of GPU exporters (dcgm-exporter, or any exporter with its format).

For clusters without a Prometheus, and for the simulated cluster, which passes its text to the same parser. Every scrape
goes into one ring buffer; a target that does not answer, an invalid number and a field that no target exports are gaps
with their reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from math import isfinite
from threading import Lock
from urllib.parse import urlsplit

import numpy as np
import requests
from requests.adapters import HTTPAdapter

from autopilot.contract.notes import shown
from autopilot.core.hardware import dcgm
from autopilot.core.hardware.xid_facts import (
    REMAP_FAILED,
    REMAP_NONE,
    REMAP_PENDING,
    REMAP_UNKNOWN,
    UNKNOWN_XID,
)
from autopilot.core.intake.silent import nearest, seen
from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Batch, Errors, Gap
from autopilot.core.model.snapshot import F64, Texts
from autopilot.deadline import carried, watched_session, within
from collectors.attribution import Attribution, Sighting, Sightings, attribute
from collectors.energy import EnergyCounters
from collectors.entities import gaps_of, missing_gaps
from collectors.exposition import Frame, Scanner
from collectors.window import WindowBuffer

_NAME = re.compile(r"^[^\s{#]+", re.MULTILINE)
NAMES_IN_BYTES = 1024 * 1024
"""Texts up to this length are searched for names of metrics, for a message."""
_XID = dcgm.FIELDS[230]
TEXT_LIMIT_BYTES = 64 * 1024 * 1024
"""Size limit of a response. A node of 16 GPUs sends about 0.1 MB."""


@dataclass(frozen=True, slots=True)
class Target:
    """One exporter. `node` names its node where the text does not; "" uses the labels."""

    url: str
    node: str = ""

    @property
    def label(self) -> str:
        """Its name in gaps."""
        return self.node or self.url


class ExporterCollector:
    """Scrapes many exporters and returns windows.

    `fetch(url) -> bytes` replaces HTTP (the simulator passes its own); it may raise OSError or ValueError. `collect` is
    called every few seconds but scrapes at most once per `interval_s`. A round ends after `round_s` whether or not all
    targets have answered. Raises `InputError` for a target that is no http address.
    """

    name = "exporter"

    def __init__(
        self,
        targets: Sequence[Target] = (),
        fetch: Callable[[str], bytes] | None = None,
        *,
        interval_s: float = 15.0,
        timeout_s: float = 5.0,
        round_s: float = 10.0,
        workers: int = 16,
        windows_s: Sequence[float] = dcgm.WINDOWS_S,
        slot_s: float = 10.0,
        headers: dict[str, str] | None = None,
    ) -> None:
        if fetch is None:
            for target in targets:
                check_url(target.url, "target")
        self.targets = tuple(targets)
        self.extras: tuple[Texts, dict[str, F64]] | None = None  # entity ids and dcgm.EXTRAS, latest round
        self._fetch = fetch
        self._interval_s, self._timeout_s, self._round_s = interval_s, timeout_s, round_s
        self._workers = max(1, min(workers, len(self.targets)))
        self._session = http_session(self._workers, headers) if fetch is None else None
        self._energy = EnergyCounters()
        self._scanner = Scanner()
        self._window = WindowBuffer(dcgm.SIGNALS, windows_s, slot_s)
        self._scraped_s = float("-inf")
        self._gaps: list[Gap] = []  # of the latest round
        self._taking = Lock()  # `sightings` may be asked while another thread collects
        self._sightings: Sightings | None = None
        self._ingested: dict[str, list[Gap]] = {}  # by target, since the last collect

    def ingest(self, now_s: float, text: bytes | str, target: Target | None = None) -> None:
        """Take in one scraped text, for a caller that scrapes on its own (several instants per tick)."""
        given = target or Target("", "")
        self._ingested[given.label] = self._take(now_s, [_text(text)], [given])

    def collect(self, now_s: float) -> Batch:
        """Scrape when it is due, then return the windows. Errors of targets never raise."""
        if self.targets and not 0 <= now_s - self._scraped_s < self._interval_s:  # the clock may go backwards
            self._scraped_s = now_s
            self._gaps = self._scrape(now_s)
        telemetry = self._window.windowed(now_s)
        gaps = [*self._gaps, *(gap for found in self._ingested.values() for gap in found)]
        self._ingested = {}
        silent = telemetry.entity_ids[telemetry.samples[0] == 0]
        reason = f"no sample of SM activity in {telemetry.windows_s[0]:.0f} s"
        gaps.extend(gaps_of(self.name, dcgm.SIGNALS[0], reason, list(silent)))
        return Batch(self.name, now_s, telemetry=telemetry, gaps=tuple(gaps), errors=self._errors())

    def counted_w(self, now_s: float) -> dict[str, float]:
        """Mean watts by GPU UUID, by the energy counter; GPUs whose counter tells nothing are not in it."""
        return self._energy.power_w(now_s)

    def _errors(self) -> Errors | None:
        """Faults of each entity in the latest round; None before the first one."""
        if self.extras is None:
            return None
        entity_ids, facts = self.extras
        failed, pending = facts["row_remap_failure"], facts["row_remap_pending"]
        remap = np.where(np.isnan(failed) & np.isnan(pending), REMAP_UNKNOWN, REMAP_NONE)
        remap = np.where(pending > 0, REMAP_PENDING, remap)
        xid = np.where(np.isnan(facts["xid_code"]), UNKNOWN_XID, np.nan_to_num(facts["xid_code"]))
        return Errors(entity_ids, xid.astype(np.int32), np.where(failed > 0, REMAP_FAILED, remap).astype(np.int8))

    def attributions(self) -> tuple[Attribution, ...]:
        """Pods on the entities of the latest text or round."""
        return attribute(self._scanner.owned())

    def sightings(self) -> Sightings:
        """GPUs and instances with their nodes, and the pods on them in the latest round."""
        with self._taking:
            if self._sightings is None:
                seen = [
                    Sighting(entity.partition("/")[0], entity.partition("/")[2], profile, host, now, model)
                    for entity, profile, host, now, model in self._scanner.there()
                ]
                self._sightings = Sightings(tuple(seen), self.attributions())
            return self._sightings

    # --- one round -----------------------------------------------------------------------------

    def _scrape(self, now_s: float) -> list[Gap]:
        texts: list[str] = []
        answered: list[Target] = []
        gaps: list[Gap] = []
        for target, answer in zip(self.targets, self._fetch_all(), strict=True):
            if isinstance(answer, bytes):
                texts.append(_text(answer))
                answered.append(target)
            else:
                gaps.append(Gap(self.name, target.label, "", f"scrape failed: {answer}"))
        return gaps + self._take(now_s, texts, answered)

    def _fetch_all(self) -> list[bytes | str]:
        """For each target its text, or the reason why there is none."""
        if self._fetch is not None:  # virtual: in order, one at a time
            return [_attempt(self._fetch, target.url) for target in self.targets]
        pool = ThreadPoolExecutor(self._workers, "scrape")
        pending: list[Future[bytes | str]] = [
            pool.submit(carried(_attempt, self._get, target.url)) for target in self.targets
        ]
        done, _ = wait(pending, self._round_s)
        pool.shutdown(wait=False, cancel_futures=True)
        late = f"no answer within the round of {self._round_s:g} s"
        return [future.result() if future in done else late for future in pending]

    def _get(self, url: str) -> bytes:
        session = self._session
        return b"" if session is None else get_limited(session, url, self._timeout_s, TEXT_LIMIT_BYTES)

    def _take(self, now_s: float, texts: list[str], targets: list[Target]) -> list[Gap]:
        with self._taking:
            self._sightings = None
            frame = self._scanner.scan(texts, [target.node for target in targets])
        if frame.recut:
            self._window.forget(frame.recut)
        self._window.put(now_s, frame.entity_ids, frame.values, frame.quality)
        self.extras = (frame.entity_ids, frame.extras)
        by_uuid: dict[str, float] = {}  # instances repeat the counter of their board
        for entity, energy_mj in zip(frame.entity_ids.tolist(), frame.extras["energy_mj"].tolist(), strict=True):
            if isfinite(energy_mj):
                by_uuid.setdefault(entity.partition("/")[0], energy_mj)
        self._energy.take((uuid, now_s, energy_mj) for uuid, energy_mj in by_uuid.items())
        return _text_gaps(frame, targets, texts) + _value_gaps(frame)


def _text_gaps(frame: Frame, targets: list[Target], texts: list[str]) -> list[Gap]:
    """Gaps for invalid texts."""
    source = ExporterCollector.name
    gaps = [
        Gap(source, targets[index].label, "", f"{count} lines are not Prometheus text, first {shown(line, 80)}")
        for index, (count, line) in frame.malformed.items()
    ]
    empty: dict[str, list[str]] = {}
    for target, text, lines in zip(targets, texts, frame.lines, strict=True):
        if lines == 0:
            names = (
                sorted(shown(each, 80)[1:-1] for each in set(_NAME.findall(text))) if len(text) < NAMES_IN_BYTES else []
            )
            empty.setdefault(seen(nearest(names, dcgm.ALIKE)), []).append(target.label)
    for near, labels in empty.items():
        gaps += gaps_of(source, "", f"the text contains no DCGM field of a GPU{near}", labels)
    return gaps


def _value_gaps(frame: Frame) -> list[Gap]:
    """Gaps for invalid numbers, and for signals that no target exports."""
    source = ExporterCollector.name
    by_reason: dict[tuple[str, dcgm.Fault, str], list[str]] = {}
    for key in frame.faults:
        entity, field, fault = key
        by_reason.setdefault((field, fault, frame.said.get(key, "")), []).append(entity)
    gaps: list[Gap] = []
    for (field, fault, text), entities in by_reason.items():
        signal = dcgm.BY_NAME[field].signal or field
        value = f" (value {text})" if text else ""
        gaps.extend(gaps_of(source, signal, f"{field} {dcgm.FAULT_TEXT[fault]}{value}", entities))
    refused = {(entity, dcgm.BY_NAME[field].signal) for entity, field, _ in frame.faults}
    missing = missing_gaps(source, list(frame.entity_ids), frame.values, "not exported")
    refused_xid = any(field == _XID.names[0] for _, field, _ in frame.faults)
    if len(frame.entity_ids) and not refused_xid and np.isnan(frame.extras[_XID.signal]).all():
        missing.append(Gap(source, "", _XID.signal, f"not exported: {_XID.names[0]}, on every GPU"))
    return gaps + [gap for gap in missing if (gap.object_id, gap.signal) not in refused]


# --- HTTP --------------------------------------------------------------------------------------


def check_url(url: str, field: str) -> None:
    """Raise `InputError` naming `field` unless `url` is an http or https address with a host."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise InputError(f"{field}: {url!r} is not an address; write for example http://10.0.0.5:9400/metrics")


def http_session(connections: int, headers: dict[str, str] | None) -> requests.Session:
    """A session that ignores the environment (proxy, netrc, CA bundle)."""
    session = requests.Session()
    session.trust_env = False
    session.headers.update(headers or {})
    adapter = HTTPAdapter(pool_connections=connections, pool_maxsize=connections, max_retries=0)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return watched_session(session)


def get_limited(
    session: requests.Session,
    url: str,
    timeout_s: float,
    limit_bytes: int,
    params: dict[str, str] | None = None,
) -> bytes:
    """The body of a 200 response within `timeout_s` in total and `limit_bytes`; else OSError. See `http_session`."""
    with (
        within(timeout_s),
        session.get(url, params=params, timeout=timeout_s, stream=True, allow_redirects=False) as answer,
    ):
        parts, size = [], 0
        for part in answer.iter_content(256 * 1024):
            parts.append(part)
            size += len(part)
            if size > limit_bytes:
                raise OSError(f"answer is longer than {limit_bytes // 1048576} MiB")
        if answer.status_code != requests.codes.ok:
            raise OSError(f"HTTP {answer.status_code} {answer.reason}: {_text(b''.join(parts))[:200]}".rstrip(": "))
    return b"".join(parts)


def reason_of(error: BaseException) -> str:
    """The error in one line: the innermost cause, without the request's address and parameters."""
    while error.args:
        inner = getattr(error.args[0], "reason", None) or error.args[0]
        if not isinstance(inner, BaseException):
            break
        error = inner
    text = str(error).rpartition("): ")[2] if "HTTPConnection" in str(error) else str(error)
    return f"{type(error).__name__}: {text}"[:300]


def _attempt(fetch: Callable[[str], bytes], url: str) -> bytes | str:
    try:
        return fetch(url)
    except (OSError, ValueError) as error:
        return reason_of(error)


def _text(body: bytes | str) -> str:
    return body if isinstance(body, str) else body.decode("utf-8", "replace")
