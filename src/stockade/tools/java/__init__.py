"""Tools in Java: compiled and looked at in sandboxes, called in JVMs that were started ahead.

No line of a tool's code runs here, and no byte that a sandbox made is read here but answers: a
tool's classes go from one sandbox into another of the same tenant as they are.
"""

from stockade.tools.answers import Finding
from stockade.tools.java.answers import Failure
from stockade.tools.java.calling import Call
from stockade.tools.java.compiling import Compiled, SourceRefused
from stockade.tools.java.engine import JavaTools
from stockade.tools.java.parking import ParkingPolicy
from stockade.tools.java.rules import check_rules
from stockade.tools.java.store import ClassStore, FolderStore, MemoryStore

__all__ = [
    "Call",
    "ClassStore",
    "Compiled",
    "Failure",
    "Finding",
    "FolderStore",
    "JavaTools",
    "MemoryStore",
    "ParkingPolicy",
    "SourceRefused",
    "check_rules",
]
