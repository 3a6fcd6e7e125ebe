"""The controller's own metrics (`gpu_autopilot_*`): one table, the samples of a moment, and their text.

A value that is not known has no sample; 0 is a measured 0. This package decides nothing.
"""
