"""Times in records that a memory keeps, told from durations by the type of their field.

Both are floats in seconds. The clock of the controller can be set: then each `Time` of a memory moves with it, wherever
it stands (`moved`, core/intake/clock.py). A new field in seconds of such a record takes one of these types.
"""

from __future__ import annotations

from typing import Annotated

Time = Annotated[float, "time"]
"""Seconds of the controller's clock; an infinity or NaN for none."""
Duration = Annotated[float, "duration"]
"""Seconds that do not move: a length, or a time of another clock."""
Day = Annotated[int, "day"]
"""Days since the epoch, by the controller's clock. They move by whole days."""
