"""Limits by cgroups."""
