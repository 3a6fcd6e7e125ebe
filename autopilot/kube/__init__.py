"""The one client of the Kubernetes API: address and credentials, requests, and a server that has just started.

Collectors, actuators and the service make their requests through `client.Client`
([0022](../../docs/decisions/0022-one-client.md)). What an answer means to them is theirs.
"""
