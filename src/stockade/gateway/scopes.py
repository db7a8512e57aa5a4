"""What a key may do."""

from enum import StrEnum


class Scope(StrEnum):
    """One thing that a key may do."""

    RUN = "run"
    """Run programs, in a fresh sandbox or a session, and steer them."""
    READ = "read"
    """Executions, their records, and what was used."""
    SANDBOXES = "sandboxes"
    """Sessions, their files, and workspaces."""
    ARTEFACTS = "artefacts"
    """Read and delete artefacts."""
    CREDENTIALS = "credentials"
    """Store and delete credentials of tools, and see where they were used; never read one."""
    TOOLS = "tools"
    """Store versions of tools, choose the one that is called, disable and remove tools."""
    AUDIT = "audit"
    """Read the tenant's audit records."""
