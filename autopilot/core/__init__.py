"""The decision. Nothing in this folder does I/O, reads a clock or draws a random number."""
