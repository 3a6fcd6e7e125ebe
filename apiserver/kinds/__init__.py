"""The built-in kinds of a server (`table`), and the type of a kind (`base`)."""
