"""The built-in cluster: a discrete-event world that the shipped controller runs on."""
