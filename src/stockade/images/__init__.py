"""What a microVM starts from, and the program that starts it, made from Debian's packages.

Nothing here runs a sandbox: a built image is files in the store, which the executor reads.
"""
