"""A Kubernetes cluster as a source of inventory and work: list and watch, one cache per kind, one `Batch`.

`access` and `transport` talk to the API server, `reflector` keeps a `cache` up to date, `source` runs them all, and
`collector` turns what changed into tables. Nothing here writes to the cluster.
"""
