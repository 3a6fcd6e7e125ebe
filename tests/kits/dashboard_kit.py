"""Queries of dashboards as a browser would send them."""

from __future__ import annotations

import re

VALUES = {"__range": "1h", "__rate_interval": "5m", "__interval": "1m"}


def filled_in(expr: str, chosen: str = ".*") -> str:
    """The expression with its variables replaced: intervals by a value, choices by all, or by `chosen`.

    `label_values(metric, label)` of a variable becomes the query behind it.
    """
    asked = re.fullmatch(r"label_values\((.+), (\w+)\)", expr)
    text = f"group by ({asked[2]}) ({asked[1]})" if asked is not None else expr
    return re.sub(r"\$\{?(\w+)\}?", lambda match: VALUES.get(match[1], chosen), text)


LOOKS: dict[str, str] = {
    "GPU fleet / Work slowed by a neighbour": "none",
    "GPU fleet / Slow members of gangs": "none",
    "GPU fleet / Capacity": "none",
    "GPU fleet / Allocated": "none",
    "GPU fleet / Free": "none",
    "GPU fleet / Out of use": "none green<1 orange",
    "GPU fleet / Measured": "percentunit red<0.5 orange<0.9 green",
    "GPU fleet / SM-active": "none",
    "GPU fleet / Gap": "none",
    "GPU fleet / Gap a day": "none",
    "GPU fleet / Widest gang": "none red<1 green",
    "GPU fleet / GPUs: capacity, allocated, SM-active": "none",
    "GPU fleet / Utilization": "percentunit",
    "GPU fleet / Measured by pool": "percentunit",
    "GPU fleet / Gap by pool": "none",
    "GPU fleet / Allocation by pool": "percentunit",
    "GPU fleet / Shared GPUs by pool": "none",
    "GPU fleet / Rates on shared GPUs": "percentunit",
    "GPU fleet / Recommended actions": "none",
    "GPU tenants / Tenants": "none",
    "GPU tenants / GPUs held": "none",
    "GPU tenants / Gap in GPUs": "none",
    "GPU tenants / Share of the fleet": "percentunit",
    "GPU tenants / Hoarding score": "percentunit green<0.5 orange",
    "GPU tenants / Daily spending": "percentunit green<1.3 orange",
    "GPU tenants / Guarantee and borrowed": "none",
    "GPU tenants / Borrowed and idle": "none green<2 orange",
    "Inference objectives / p99 latency and objective": "s",
    "Inference objectives / First token: p99 and objective": "s",
    "Inference objectives / Next token: p99 and objective": "s",
    "Inference objectives / Late requests": "percentunit green<0.01 red",
    "Inference objectives / Load and forecast": "reqps",
    "Inference objectives / Headroom": "none red<0 green",
    "Inference objectives / Replicas": "none",
    "Inference objectives / Waiting requests": "none",
    "Inference objectives / Coverage": "percentunit",
    "Inference objectives / Drift": "none 0=as usual:green 1=drifting:red",
    "Fragmentation and MIG / Stranded GPUs by cause": "none",
    "Fragmentation and MIG / Fragmentation index": "percentunit green<0.5 orange",
    "Fragmentation and MIG / Stranded of the expected mix": "none",
    "Fragmentation and MIG / Widest gang that fits": "none",
    "Fragmentation and MIG / Free GPUs by node": "none gray<1 blue<4 light-green<8 green",
    "Fragmentation and MIG / GPU and MIG map": "percentunit red<0.3 orange<0.6 green",
    "Fragmentation and MIG / Changing and failed geometries": "none",
    "GPU queue / Waiting workloads": "none",
    "GPU queue / Waiting GPUs": "none",
    "GPU queue / Oldest": "s green<14400 orange",
    "GPU queue / Queues": "none",
    "GPU queue / Wait by queue": "s green<14400 orange",
    "GPU queue / Admissions and evictions by queue": "none",
    "GPU queue / Waiting GPUs by reason": "none",
    "GPU queue / Waiting workloads by reason": "none",
    "GPU queue / Oldest by tenant": "s green<14400 orange",
    "GPU queue / Waiting GPUs by tenant": "none",
    "Autopilot / Leader": "none 0=none:red 1=leads:green",
    "Autopilot / Kill switch": "none 0=off:green 1=on:red",
    "Autopilot / Paused": "none 0=no:green 1=paused:red",
    "Autopilot / Policy": "none 0=in force:green 1=gone or invalid:red",
    "Autopilot / Last tick": "s green<60 orange<300 red",
    "Autopilot / Jobs with a forecast": "percentunit red<0.5 orange<0.8 green",
    "Autopilot / Open recommendations": "none",
    "Autopilot / Recommended actions": "none",
    "Autopilot / Proposals by answer": "none",
    "Autopilot / Refusals by guard": "none",
    "Autopilot / Ended effects": "none",
    "Autopilot / Effects in flight": "none",
    "Autopilot / Gain and cost of accepted proposals": "suffix:GPU-h",
    "Autopilot / Promised and realised use": "suffix:GPU-h",
    "Autopilot / Realised use / promised use": "percentunit red<0.5 orange<0.8 green",
    "Autopilot / Disruptions": "none",
    "Autopilot / Lost work": "suffix:GPU-h",
    "Autopilot / Duration of effects": "s",
    "Autopilot / Duration of ticks": "s",
    "Autopilot / Age of the sources": "s green<300 red",
    "Autopilot / Telemetry": "none",
    "Autopilot / Modes": "none",
    "GPU job / SM activity": "percentunit",
    "GPU job / Tensor activity": "percentunit",
    "GPU job / DRAM activity": "percentunit",
    "GPU job / Memory in use": "decmbytes",
    "GPU job / Power": "watt",
    "GPU job / Temperature": "celsius green<80 orange<85 red",
    "GPU job / SM clock": "hertz",
    "GPU job / NVLink": "Bps",
    "GPU job / Last XID": "none green<1 red 0=none:green",
    "GPU job / Imbalance between ranks": "percentunit",
}
"""Unit, steps (`colour<from of the next`) and words (`value=text:colour`) of each panel."""
