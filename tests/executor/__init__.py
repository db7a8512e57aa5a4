"""The parts of the executor, each by itself, and what it leaves on the host."""
