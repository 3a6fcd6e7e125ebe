"""Latency, demand and pressure of inference services, measured by their servers, gateways and meshes.

One row of `sources.py` for each source, with its queries; `collector.py` asks a Prometheus for them.
"""
