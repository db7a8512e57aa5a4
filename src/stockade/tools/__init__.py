"""Custom tools: what one is, what is looked at before it is kept, and how a call becomes an execution.

Pure: nothing here starts or asks anything, but :mod:`~stockade.tools.java`, which asks the environment
that it is given, and the two programs that others start
(:mod:`~stockade.tools.schema_worker`, and the files in ``guest/``).
"""
