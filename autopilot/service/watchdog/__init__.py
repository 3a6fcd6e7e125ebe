"""The watchdog: a small process that frees waiting work if the controller does not come back."""
