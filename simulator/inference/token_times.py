"""Times of tokens of a simulated service: to the first one (TTFT), and from one to the next (ITL).

With p = input_tokens / prefill_tokens_per_s and d = 1 / decode_tokens_per_s:

    TTFT = wait for a slot + p + d
    ITL  = d, and d + p for one token of each other request on its replica

since a prefill stalls the decodes of its replica (Agrawal et al., Sarathi-Serve, OSDI 2024; Zhong et al., DistServe,
OSDI 2024). The other requests are the mean of the window, less one. So ITL rises with the load of a replica that does
both. A pool of decode has the first token already: nothing stalls there, and the wait for a slot is part of the time to
the second token.

What this leaves out: a stall holds no slot longer; prefills in chunks make shorter stalls; the transfer of the KV cache
from prefill to decode takes time; a step of decode takes longer in a larger batch.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import NamedTuple

import numpy as np

from autopilot.core.model.objects import ServingRole
from simulator.inference.requests import Floats, Ints
from simulator.inference.serving_queue import LatencyCounts
from simulator.inference.serving_records import ServiceSpec


class TokenFigures(NamedTuple):
    """p99 over several windows, and the share over the objective in the last one; NaN without a measurement."""

    ttft_p99_s: float = float("nan")
    itl_p99_s: float = float("nan")
    ttft_late_ratio: float = float("nan")
    itl_late_ratio: float = float("nan")


class _Window(NamedTuple):
    ttft: LatencyCounts
    itl: LatencyCounts
    late_first: int
    late_next: int


class TokenTimes:
    """The tokens of one service, window by window. It measures what its role does."""

    def __init__(self, spec: ServiceSpec, windows: int) -> None:
        """`windows`: how many closed ones p99 covers."""
        self._spec = spec
        self._prefill_s, self._output = array("d"), array("q")  # by request, in the order of arrival
        self._first: list[Floats] = []  # of requests that completed since the last window
        self._done: list[Ints] = []
        self._closed: deque[_Window] = deque(maxlen=windows)

    def arrived(self, input_tokens: Ints, output_tokens: Ints) -> None:
        """Requests arrived."""
        self._prefill_s.frombytes((input_tokens / self._spec.prefill_tokens_per_s).astype(np.float64).tobytes())
        self._output.frombytes(output_tokens.astype(np.int64).tobytes())

    def completed(self, seq: Ints, waited_s: Floats) -> None:
        """Requests were completed."""
        self._done.append(seq)
        output = np.frombuffer(self._output, np.int64)[seq]
        self._first.append(
            waited_s
            + np.frombuffer(self._prefill_s, np.float64)[seq]
            + np.minimum(output, 1) / self._spec.decode_tokens_per_s
        )

    def close(self, batch: float) -> None:
        """A window ends in which a replica had `batch` requests in the mean."""
        seq = np.concatenate([np.empty(0, np.int64), *self._done])
        first_s = np.concatenate([np.empty(0), *self._first])
        self._done, self._first = [], []
        spec, step_s = self._spec, 1.0 / self._spec.decode_tokens_per_s
        further = np.maximum(np.frombuffer(self._output, np.int64)[seq] - 1, 0)
        total = int(further.sum())
        if spec.role == ServingRole.DECODE:
            slow_s, times = first_s[further > 0], 1
        else:
            slow_s = step_s + np.frombuffer(self._prefill_s, np.float64)[seq]
            times = min(max(round(batch) - 1, 0), total // len(seq)) if len(seq) else 0
        plain = total - times * len(slow_s)
        ttft, itl = LatencyCounts(), LatencyCounts()
        ttft.add(first_s)
        itl.add(slow_s, times)
        itl.add(np.array([step_s]), plain)
        late_first = late_next = 0
        if spec.ttft_objective_s is not None:
            late_first = int(np.count_nonzero(first_s > spec.ttft_objective_s))
        if spec.itl_objective_s is not None:
            late_next = times * int(np.count_nonzero(slow_s > spec.itl_objective_s))
            late_next += plain * (step_s > spec.itl_objective_s)
        self._closed.append(_Window(ttft, itl, late_first, late_next))

    def figures(self) -> TokenFigures:
        """What its servers show now."""
        if not self._closed:
            return TokenFigures()
        ttft, itl, last = LatencyCounts(), LatencyCounts(), self._closed[-1]
        for each in self._closed:
            ttft.merge(each.ttft)
            itl.merge(each.itl)
        found = TokenFigures(
            ttft.quantiles_s(0.99)[0],
            itl.quantiles_s(0.99)[0],
            last.late_first / last.ttft.total if last.ttft.total else float("nan"),
            last.late_next / last.itl.total if last.itl.total else float("nan"),
        )
        nan = float("nan")
        if self._spec.role == ServingRole.PREFILL:
            return found._replace(itl_p99_s=nan, itl_late_ratio=nan)
        if self._spec.role == ServingRole.DECODE:
            return found._replace(ttft_p99_s=nan, ttft_late_ratio=nan)
        return found
