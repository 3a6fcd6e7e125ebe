"""Effects on a Kubernetes cluster through its API server. docs/decisions/0010-acting.md has the rules."""
