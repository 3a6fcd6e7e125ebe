"""Runbooks: one for each alert, read by people and by the service (`autopilot/oncall/`)."""
