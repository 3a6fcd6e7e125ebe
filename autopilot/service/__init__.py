"""The controller as a service: settings, wiring, the loop, and its state on disk.

Nothing here decides. The loop calls `Controller.tick`; commands, the kill switch and leadership enter through ports.
"""
