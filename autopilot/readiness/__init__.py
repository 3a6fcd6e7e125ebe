"""`autopilot check`: is this cluster ready for the autopilot? One line for each finding, with the fix."""
