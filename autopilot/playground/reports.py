"""What running work reports about itself, as an annotation that it writes while it runs."""

from __future__ import annotations

LAST_CHECKPOINT = "gpu-autopilot.io/last-checkpoint"
"""When the work completed its newest checkpoint: seconds since 1970."""
