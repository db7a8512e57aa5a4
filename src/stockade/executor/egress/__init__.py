"""Connections that leave a sandbox: from its agent's channels to the egress proxy."""
