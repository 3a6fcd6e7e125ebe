"""The service on a simulated cluster (`autopilot run --simulate`): its process, and the cluster as the wiring needs it.

Nothing that runs in a real cluster imports this package (contract 4 of `pyproject.toml`).
"""
