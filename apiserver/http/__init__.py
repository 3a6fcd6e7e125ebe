"""The server behind a socket."""
