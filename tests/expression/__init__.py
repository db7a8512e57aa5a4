"""The expression tier's engine."""
