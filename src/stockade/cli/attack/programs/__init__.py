"""Hostile programs, shipped as files. Never imported by a process that is not to be attacked."""
