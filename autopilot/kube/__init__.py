"""The one client of the Kubernetes API: address and credentials, requests, and a server just started.

Collectors, actuators and the service make their requests through `client.Client`
([0022](../../docs/decisions/0022-one-client.md)). The meaning of an answer is theirs.
"""
