"""Kueue 0.19 on the server in memory: its kinds, webhooks, queues, scheduler and controllers.

`install(server)` serves the kinds and webhooks and starts the manager; the manager may go down and come back.
"""
