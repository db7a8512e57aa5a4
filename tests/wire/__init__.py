"""Tests of both ends of the wire, each alone and against the other."""
