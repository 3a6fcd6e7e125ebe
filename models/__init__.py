"""Forecasters behind one port."""
