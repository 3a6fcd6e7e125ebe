"""A gang that one of its members holds up, in words."""

from __future__ import annotations

from collections.abc import Sequence

from autopilot.core.model.neighbours import SlowGpu, Straggler


def straggler_lines(uid: str, found: Sequence[Straggler], suspects: Sequence[SlowGpu]) -> list[str]:
    """What holds up a gang, and whether its GPU is suspected itself."""
    doubted = {each.gpu: each.gangs for each in suspects}
    return [_line(each, doubted.get(each.gpu, 0)) for each in found if each.gang_uid == uid]


def _line(each: Straggler, gangs: int) -> str:
    member = f"{f'rank {each.rank} on ' if each.rank >= 0 else ''}{each.node}{f', GPU {each.gpu}' if each.gpu else ''}"
    also = f"; this GPU was slow in {gangs} gangs" if gangs else ""
    return (
        f"held up by {member}: it computes {each.slow_ratio:.2f} times as long as its peers "
        f"({', '.join(each.evidence)}, confidence {each.confidence:.2f}), which costs "
        f"{each.cost_gpu_s_per_h / 3600.0:.2f} GPU-h an hour{also}"
    )
