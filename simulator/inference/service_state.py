"""The state of one inference service of a run: its requests, its replicas, its autoscaler, and its bounds."""

from __future__ import annotations

from collections.abc import Callable
from math import nan

from simulator.inference.autoscaler import Autoscaler
from simulator.inference.deployments import Deployment
from simulator.inference.log_latencies import LogLatencies
from simulator.inference.requests import ArrivalSource
from simulator.inference.serving import ServiceSim
from simulator.inference.serving_records import Served
from simulator.inference.token_times import TokenFigures
from simulator.world.work import Shape

WINDOW_S = 60.0
RECENT_WINDOWS = 5
"""Windows over which the service table shows latency, rate and violations: five minutes."""


class Service:
    """One service of a run: its queue, its autoscaler, and the state of each of its replicas."""

    def __init__(
        self,
        row: int,
        deployment: Deployment,
        shape: Shape,
        source: ArrivalSource,
        on_served: Callable[[Served], None] | None = None,
    ) -> None:
        self.row, self.deployment, self.shape = row, deployment, shape
        self.sim = ServiceSim(deployment.serving, source, window_s=WINDOW_S, on_served=on_served)
        self.autoscaler = Autoscaler(deployment.autoscaler)
        self.looked_at = self.sim.counters()
        self.waiting: dict[int, None] = {}  # pending, wanted
        self.starting: dict[int, None] = {}  # holds GPUs, not serving yet
        self.ready: dict[int, None] = {}
        self.draining: dict[int, None] = {}  # takes no new requests
        self.sim.logs = LogLatencies() if deployment.slowed_by else None
        self.slowed: dict[int, float] = {}  # how many times as slow work on their node makes them (slowed.py)
        self.rates: dict[int, float] = {}  # of replicas on shared GPUs, over their full speed
        self.surplus: dict[int, None] = {}  # pending, no longer wanted, and the scheduler cannot forget it
        self.made = 0
        self.stopped = False  # somebody set it to zero: its autoscaler stands aside, as the original does
        self.needed = deployment.initial_replicas  # the need of its load, without a floor
        self.load_ratio = nan  # the metric of the latest sync over its target
        self._floor, self._floor_until_s = 0, nan
        self._ceiling, self._ceiling_until_s, self._had = -1, nan, 0
        self.ready_log: list[tuple[float, int]] = [(0.0, 0)]
        self._recent: tuple[int, tuple[float, ...]] = (-1, (nan,) * 6)
        self._tokens: tuple[int, TokenFigures] = (-1, TokenFigures())

    def rate(self, job: int) -> float:
        """The speed of a ready replica over its full one."""
        return self.rates.get(job, 1.0) / self.slowed.get(job, 1.0)

    @property
    def wanted(self) -> int:
        """Target replicas of the autoscaler: ready ones and those under way."""
        return len(self.waiting) + len(self.starting) + len(self.ready)

    def floor(self, now_s: float) -> tuple[int, float]:
        """(least replicas, until when); (0, NaN) without a floor, or after it has expired."""
        return (self._floor, self._floor_until_s) if self._floor_until_s > now_s else (0, nan)

    def set_floor(self, replicas: int, until_s: float) -> None:
        """Keep at least this many replicas from now until then."""
        self._floor, self._floor_until_s = replicas, until_s if replicas else nan

    def ceiling(self, now_s: float) -> tuple[int, float]:
        """(most replicas, until when); (-1, NaN) without a ceiling, or after it has expired."""
        return (self._ceiling, self._ceiling_until_s) if self._ceiling_until_s > now_s else (-1, nan)

    def set_ceiling(self, replicas: int, until_s: float, now_s: float) -> None:
        """Keep at most this many replicas from now until then."""
        if self.ceiling(now_s)[0] < 0 and replicas >= 0:
            self._had = self.wanted
        self._ceiling, self._ceiling_until_s = replicas, until_s if replicas >= 0 else nan

    def restored(self, now_s: float) -> int:
        """Replicas that it had before a ceiling that has ended, once; else 0."""
        if self._had and self.ceiling(now_s)[0] < 0:
            had, self._had = self._had, 0
            return had
        return 0

    def log_ready(self, now_s: float) -> None:
        """Note the number of ready replicas."""
        self.ready_log.append((now_s, len(self.ready)))

    def recent(self, now_s: float) -> tuple[float, ...]:
        """(p99_s, rate_rps, violation_ratio) of the last closed windows, and (rate_rps, violation_ratio, tokens/s) of
        the last one; NaN where unknown.
        """
        closed = int(now_s // WINDOW_S)
        if self._recent[0] != closed:
            windows = self.sim.windows()
            arrived = windows.arrived[-RECENT_WINDOWS:]
            completed = float(windows.completed[-RECENT_WINDOWS:].sum())
            violations = float(windows.violations[-RECENT_WINDOWS:].sum())
            last = slice(-1, None)  # the last window, or nothing before there is one
            asked, done, over, tokens = (
                float(column[last].sum()) if len(column) else nan
                for column in (windows.arrived, windows.completed, windows.violations, windows.tokens)
            )
            self._recent = (
                closed,
                (
                    self.sim.recent_latency_s(0.99, RECENT_WINDOWS),
                    float(arrived.sum()) / (len(arrived) * WINDOW_S) if len(arrived) else nan,
                    violations / completed if completed else nan,
                    asked / WINDOW_S,
                    over / done if done > 0 else nan,
                    tokens / WINDOW_S,
                ),
            )
        return self._recent[1]

    def tokens(self, now_s: float) -> TokenFigures:
        """Times of tokens of the last closed windows."""
        closed = int(now_s // WINDOW_S)
        if self._tokens[0] != closed:
            self._tokens = (closed, self.sim.tokens())
        return self._tokens[1]
