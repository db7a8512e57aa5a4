"""``stockade attack``: what the boundary must stop, tried against this machine."""
