"""Dedicated machines."""
