"""gpu-autopilot: the decision (core) and the programs around it."""
