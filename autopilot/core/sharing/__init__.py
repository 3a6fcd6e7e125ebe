"""Sharing: work that does not drive its GPUs, together on one GPU.

What is known of work alone (`follow.py`), and what is predicted for it together (`colocation.py`).
"""
