"""A Kubernetes API server in memory: for the playground, and for tests.

`Server` is a deterministic machine on a virtual `Timeline`: requests go in, responses and watch streams come out. It
reads no clock, draws no random number of its own and starts no thread; `apiserver.http` puts it behind a socket.
"""
