"""The routers of the API, one file each. `ROUTERS` in `autopilot/http/app.py` lists them."""
