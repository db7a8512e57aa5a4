"""What calls a tool's function inside."""
