"""The future: forecasters behind one port."""
