"""The port as HTTP messages, version 1: what client, gateway and executor say to one another.

Pure data and codecs; no I/O. docs/api.md says which message goes where.
"""
