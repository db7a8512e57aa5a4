"""Custom tools: what one is, what is looked at before it is kept, and how a call becomes an execution.

Pure: nothing here starts or asks anything, but the two programs that others start
(:mod:`~stockade.tools.schema_worker`, and the files in ``guest/``).
"""
