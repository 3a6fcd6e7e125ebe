"""The commands that run the service, and those that talk to it. Only these modules know service and API together."""
