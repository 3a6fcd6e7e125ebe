"""Members that hold up their gang: the move of the gang away from them, and the GPUs suspected of it."""
