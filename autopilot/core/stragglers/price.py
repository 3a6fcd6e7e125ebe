"""Worth of a move of a gang away from the member that holds it up.

The rest of the slowness is unknown: a member that was slow for an hour is expected to be slow for one more, as long as
its gang runs. With that, the move pays once the work lost since the begin exceeds the price of the stop. Whatever
happens then, less than twice the loss of the best choice in hindsight is lost (the rule of renting or buying skis).
"""

from __future__ import annotations

from math import isnan


def rest_s(lasted_s: float, remaining_s: float) -> float:
    """Expected rest of the slowness of a gang with this remaining run time (s). NaN: unknown, no limit."""
    lasted_s = max(lasted_s, 0.0)
    return lasted_s if isnan(remaining_s) else min(lasted_s, max(remaining_s, 0.0))


def worth_gpu_s(cost_gpu_s_per_h: float, confidence: float, lasted_s: float, remaining_s: float) -> float:
    """GPU-seconds that the gang is expected to keep on losing where it is."""
    return cost_gpu_s_per_h * confidence * rest_s(lasted_s, remaining_s) / 3600.0
