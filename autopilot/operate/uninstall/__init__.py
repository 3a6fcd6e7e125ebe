"""`autopilot uninstall`: effects are given back, then everything that the installation created is removed."""
