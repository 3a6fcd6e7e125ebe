"""Alerts and recording rules on the own metrics: their table, and the documents generated from it.

Every file under `dashboards/` and `deploy/prometheus/` that has rules is written by `scripts/generate_rules.py` from
this package. It reads no cluster and decides nothing.
"""
