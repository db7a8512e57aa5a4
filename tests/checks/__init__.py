"""The checks of a tool's source."""
