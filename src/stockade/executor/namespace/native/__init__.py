"""The part of the namespace tier that is C, and what it is generated from."""
