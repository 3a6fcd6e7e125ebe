"""What the commands of `autopilot` do: run, show and write. Only these modules print."""
