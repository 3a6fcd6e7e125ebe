"""The HTTP API over the published steps of the service. It reads the latest step, stores commands, and decides nothing.

One file per router in `routers/`, and one table of them in `app.py`.
"""
