"""The execution service: the executor behind HTTP. One internal token, no other secret."""
