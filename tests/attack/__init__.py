"""The attacks that the boundary must stop."""
