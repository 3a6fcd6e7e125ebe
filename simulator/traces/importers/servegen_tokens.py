"""Token counts of ServeGen's clients, drawn from published quantiles or histograms of six-hour windows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autopilot.core.model.errors import InputError

LEVELS = (0.0, 0.10, 0.50, 0.90, 0.95, 0.99, 1.0)
Knots = npt.NDArray[np.float64]
"""log of the token count at each of LEVELS."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Knots by (tenant, time) for input and output; a model's median client stands in for missing ones."""

    times_s: dict[str, npt.NDArray[np.float64]]
    knots: dict[str, npt.NDArray[np.float64]]  # tenant -> [windows, 2, levels]
    of_model: dict[str, npt.NDArray[np.float64]]  # model -> [2, levels]

    def draw(
        self,
        rng: np.random.Generator,
        tenant: npt.NDArray[np.object_],
        model: npt.NDArray[np.object_],
        t_s: npt.NDArray[np.float64],
        window: npt.NDArray[np.int64],
    ) -> dict[str, npt.NDArray[np.float64]]:
        """`input_tokens` and `output_tokens` of the requests; the first three have one entry a client window.

        Between the published quantiles the logarithm of the count is interpolated. NaN if the trace
        says nothing about the model.
        """
        knots = np.stack([self._knots(t, m, at) for t, m, at in zip(tenant, model, t_s, strict=True)])
        drawn = {}
        for side, name in enumerate(("input_tokens", "output_tokens")):
            level = rng.random(len(window))
            upper = np.clip(np.searchsorted(LEVELS, level, side="right"), 1, len(LEVELS) - 1)
            low, high = np.array(LEVELS)[upper - 1], np.array(LEVELS)[upper]
            rows = knots[:, side]
            below, above = rows[window, upper - 1], rows[window, upper]
            drawn[name] = np.maximum(1.0, np.rint(np.exp(below + (above - below) * (level - low) / (high - low))))
        return drawn

    def _knots(self, tenant: str, model: str, t_s: float) -> npt.NDArray[np.float64]:
        if tenant in self.knots:
            at = int(np.searchsorted(self.times_s[tenant], t_s, side="right")) - 1
            return np.asarray(self.knots[tenant][max(at, 0)])
        return self.of_model.get(model, np.full((2, len(LEVELS)), np.nan))


def tokens_of_table(frame: Any | None) -> TokenTable:
    """From the extract's quantile columns (`in_p10` ... `out_p99`); without a file every count is unknown."""
    if frame is None:
        return TokenTable({}, {}, {})
    known = frame.dropna(subset=["in_p50", "out_p50"]).sort_values(["tenant", "t_s"], kind="stable")
    sides = []
    for side in ("in", "out"):
        values = known[[f"{side}_p{level}" for level in (10, 50, 90, 95, 99)]].to_numpy(dtype=np.float64)
        sides.append(_with_ends(values))
    return _table(known, np.stack(sides, axis=1))


def tokens_of_folder(path: Path, model: str) -> TokenTable:
    """From the publisher's histograms, reduced to the same quantiles."""
    import pandas as pd

    rows, values = [], []
    for file in sorted(path.glob("chunk-*-dataset.json")):
        tenant = f"{model}#{file.name.split('-')[1]}"
        try:
            windows = json.loads(file.read_text(encoding="utf-8"))
            for at, sides in windows.items():
                quantiles = [_histogram_quantiles(sides[name]) for name in ("input_tokens", "output_tokens")]
                if all(each is not None for each in quantiles):
                    rows.append({"t_s": float(at), "model": model, "tenant": tenant})
                    values.append(quantiles)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{file}: not a ServeGen dataset: {error}") from error
    if not rows:
        return TokenTable({}, {}, {})
    frame = pd.DataFrame(rows)
    knots = np.stack([_with_ends(np.array(values, dtype=np.float64)[:, side]) for side in (0, 1)], axis=1)
    order = frame.sort_values(["tenant", "t_s"], kind="stable").index.to_numpy()
    return _table(frame.loc[order], knots[order])


def _histogram_quantiles(text: str) -> list[float] | None:
    """Quantiles at 10, 50, 90, 95, 99 % of a histogram written as `{count: share, ...}`."""
    pairs = [part.split(":") for part in text.strip().strip("{}").split(",") if part.strip()]
    if not pairs:
        return None
    histogram = sorted((float(count), float(share)) for count, share in pairs)
    counts = np.array([count for count, _ in histogram])
    cumulated = np.cumsum([share for _, share in histogram])
    at = np.searchsorted(cumulated / cumulated[-1], (0.10, 0.50, 0.90, 0.95, 0.99), side="left")
    return [float(counts[min(index, len(counts) - 1)]) for index in at]


def _with_ends(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """[rows, 5 quantiles] -> log knots [rows, 7]: the ends go on as far as the neighbouring quantiles are apart."""
    logs = np.log(np.maximum(values, 1.0))
    least = np.maximum(logs[:, 0] - (logs[:, 1] - logs[:, 0]), 0.0)
    most = logs[:, 4] + (logs[:, 4] - logs[:, 3])
    return np.column_stack([least, logs, most])


def _table(frame: Any, knots: npt.NDArray[np.float64]) -> TokenTable:
    tenants = frame["tenant"].to_numpy(dtype=object)
    models = frame["model"].astype(str).to_numpy(dtype=object)
    times = frame["t_s"].to_numpy(dtype=np.float64)
    if not len(tenants):
        return TokenTable({}, {}, {})
    first = np.flatnonzero(np.concatenate([[True], tenants[1:] != tenants[:-1]])).tolist()
    spans = list(zip(first, [*first[1:], len(tenants)], strict=True))
    return TokenTable(
        times_s={str(tenants[start]): times[start:end] for start, end in spans},
        knots={str(tenants[start]): knots[start:end] for start, end in spans},
        of_model={str(model): np.median(knots[models == model], axis=0) for model in np.unique(models.astype(str))},
    )
