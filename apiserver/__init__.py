"""A Kubernetes API server in memory: for the playground, and for tests."""
