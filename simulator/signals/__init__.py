"""Telemetry of the simulated GPUs: archetypes of load, DCGM text, and noise by seed."""
