"""gpu-autopilot: the decision (core) and the shell around it."""
