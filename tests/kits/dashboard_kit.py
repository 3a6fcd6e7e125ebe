"""Queries of dashboards as a browser would send them."""

from __future__ import annotations

import re

VALUES = {"gpu_hour_price": "2.5", "__rate_interval": "5m", "__interval": "1m"}


def filled_in(expr: str) -> str:
    """The expression with its variables replaced: prices and intervals by a value, choices by all.

    `label_values(metric, label)` of a variable becomes the query behind it.
    """
    asked = re.fullmatch(r"label_values\((.+), (\w+)\)", expr)
    text = f"group by ({asked[2]}) ({asked[1]})" if asked is not None else expr
    return re.sub(r"\$\{?(\w+)\}?", lambda match: VALUES.get(match[1], ".*"), text)
