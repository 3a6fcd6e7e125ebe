"""One run: virtual time, the scheduler's turn, injected faults, and the accounts of GPU time."""
