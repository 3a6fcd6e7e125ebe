"""A hostile world around the shipped Controller, and the rules that must hold in it whatever happens."""
