"""The gateway's HTTP API, version 1: what docs/api.md says, and nothing beside it."""
