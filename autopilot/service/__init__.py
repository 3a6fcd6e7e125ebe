"""The controller as a service: settings, wiring, the loop, and what it keeps on disk.

Nothing here decides. The loop calls `Controller.tick`; commands, the kill switch and leadership enter through ports.
"""
