"""The world out: actuators behind one port."""
