"""`autopilot uninstall`: effects are given back, then all objects of the installation are removed."""
