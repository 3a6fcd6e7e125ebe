"""The watchdog: a small process that opens the way for waiting work when the controller does not come back."""
