"""The tier that gives a guest a kernel of its own."""
