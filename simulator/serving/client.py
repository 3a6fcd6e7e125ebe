"""A controller's side of the protocol: the ports `Clock`, `Collector` and `Actuator` of a served cluster.

One request reads time and lists together, so that both are of the same instant: `now_s` makes it, and the collectors
return its batches. While the cluster does not answer, its clock stands still and its lists are a gap.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import requests

from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Batch, Gap, Instruction, Inventory, Outcome, OutcomeKind
from autopilot.deadline import watched_session, within
from simulator.serving.wire import MEDIA_TYPE, ClockReading, StateAnswer, decode, encode

TIMEOUT_S = 10.0
_FAILURES = (requests.RequestException, TimeoutError, ValueError)


class ServedClient:
    """The connection to one served cluster."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self.url, self._timeout_s = url.rstrip("/"), timeout_s
        self._session = _session()
        self._answer: StateAnswer | None = None
        self._concluded: tuple[int, int] = (0, 0)
        self._inventory: Inventory | None = None
        self.problem = ""  # why the last request failed; "" when it did not

    def clock(self) -> ClockReading:
        """The clock of the cluster. Raises `InputError` where nothing answers."""
        try:
            with within(self._timeout_s):
                answer = self._session.get(f"{self.url}/v1/clock", timeout=self._timeout_s)
            answer.raise_for_status()
            return ClockReading(**answer.json())
        except (*_FAILURES, TypeError) as error:
            raise InputError(
                f"{self.url}: no simulated cluster answers here ({type(error).__name__}); start one with `autopilot "
                "cluster SCENARIO`"
            ) from error

    def now_s(self) -> float:
        """Read the cluster and return the time of its state; without an answer the last known time."""
        before = self._answer
        params = {"inventory": str(before.inventory if before and self._inventory is not None else -1)}
        if before is not None:
            params |= {"ended": str(self._concluded[0]), "deleted": str(self._concluded[1]), "run": before.run}
        try:
            with within(self._timeout_s):
                got = self._session.get(f"{self.url}/v1/state", params=params, timeout=self._timeout_s)
            got.raise_for_status()
            answer = decode(got.content, StateAnswer)
        except _FAILURES as error:
            self.problem = f"{type(error).__name__}: {error}"
            return before.now_s if before is not None else 0.0
        if before is not None and answer.run != before.run:
            self.problem = f"another cluster answers at {self.url} (run {answer.run}); restart the controller"
            return before.now_s
        self.problem, self._answer = "", answer
        if answer.batches[0].inventory is not None:
            self._inventory = answer.batches[0].inventory
        return answer.now_s

    def last_now_s(self) -> float:
        """The time of the last state, without asking."""
        return self._answer.now_s if self._answer is not None else 0.0

    def exporters(self) -> dict[str, str]:
        """Node -> address of its exporter. Raises `InputError` where the cluster does not answer."""
        try:
            with within(self._timeout_s):
                found = self._session.get(f"{self.url}/sd/exporters", timeout=self._timeout_s).json()
            return {
                str(each["labels"]["node"]): f"http://{each['targets'][0]}{each['labels']['__metrics_path__']}"
                for each in found
            }
        except (*_FAILURES, KeyError, TypeError) as error:
            raise InputError(f"{self.url}: the exporters cannot be listed: {error}") from error

    def conclude(self) -> None:
        """The decision on the last state is recorded: what it reported as ended need not be reported again."""
        if self._answer is not None and not self.problem:
            self._concluded = self._answer.mark

    def batch(self, place: int, source: str, now_s: float) -> Batch:
        """The batch at `place` of the last answer, or a gap."""
        if self._answer is None or self.problem:
            reason = f"the simulated cluster does not answer: {self.problem}"
            return Batch(source, now_s, gaps=(Gap(source, "", "", reason),))
        found = self._answer.batches[place]
        if place == 0 and found.inventory is None and found.work is not None:
            return replace(found, inventory=self._inventory)
        return found

    def apply(self, instruction: Instruction) -> Outcome:
        """Send one instruction. Without an answer it may be sent again: it acts once per id."""
        now_s = self._answer.now_s if self._answer is not None else 0.0
        try:
            with within(self._timeout_s):
                got = self._session.post(
                    f"{self.url}/v1/effects",
                    data=encode(instruction),
                    headers={"Content-Type": MEDIA_TYPE},
                    timeout=self._timeout_s,
                )
            got.raise_for_status()
            return decode(got.content, Outcome)
        except _FAILURES as error:
            reason = f"the simulated cluster does not answer: {type(error).__name__}: {error}"
            return Outcome(instruction.id, OutcomeKind.FAILED, now_s, reason, retryable=True)


class ServedCollector:
    """Inventory and work, or telemetry, of a served cluster (port `Collector`)."""

    def __init__(self, client: ServedClient, name: str, place: int = 0) -> None:
        self.name, self._client, self._place = name, client, place

    def collect(self, now_s: float) -> Batch:
        """The batch of the state that the clock has read."""
        return self._client.batch(self._place, self.name, now_s)


class ServedActuator:
    """Effects in a served cluster (port `Actuator`)."""

    name = "simulated-cluster"

    def __init__(self, client: ServedClient) -> None:
        self._client = client

    def apply(self, instruction: Instruction, now_s: float) -> Outcome:
        """Carry out one instruction; the cluster returns the first outcome to a repeated id."""
        return self._client.apply(instruction)


class ChangeWatch:
    """Calls `on_change` when something changes in the cluster, from a thread of its own."""

    def __init__(self, url: str, on_change: Callable[[], None], wait_s: float = 10.0) -> None:
        self._url, self._on_change, self._wait_s = f"{url.rstrip('/')}/v1/changes", on_change, wait_s
        self._stop = threading.Event()
        threading.Thread(target=self._watch, name="changes of the cluster", daemon=True).start()

    def close(self) -> None:
        """Stop watching; a request that is under way ends by itself."""
        self._stop.set()

    def _watch(self) -> None:
        session, revision = _session(), -1
        while not self._stop.is_set():
            params: dict[str, Any] = {"after": revision, "wait_s": self._wait_s}
            try:
                got = session.get(self._url, params=params, timeout=self._wait_s + TIMEOUT_S)
                got.raise_for_status()
                now = int(got.json()["revision"])
            except (*_FAILURES, KeyError, TypeError):
                self._stop.wait(1.0)  # the next tick reports that the cluster does not answer
                continue
            if now != revision:
                revision = now
                self._on_change()


def _session() -> requests.Session:
    session = requests.Session()
    session.trust_env = False
    return watched_session(session)
