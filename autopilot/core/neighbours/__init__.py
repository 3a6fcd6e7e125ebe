"""Work that slows its neighbours: a suspect is confirmed by a pause, remembered, and moved away."""
