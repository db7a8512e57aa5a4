"""The tables. Times are microseconds since 1970, UTC; a day is days since then.

What is altered here needs a migration (``migrations/versions/``); a test compares the two.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

# Names for what SQLite and PostgreSQL would each name differently, or not at all.
metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _tenant(*, primary_key: bool = False) -> Column[str]:
    return Column(
        "tenant",
        String(64),
        ForeignKey("tenants.name"),
        primary_key=primary_key,
        nullable=False,
    )


tenants = Table(
    "tenants",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    Column("disabled_at", BigInteger),
    Column("policy", Text, nullable=False),
    Column("budgets", Text, nullable=False),
)

keys = Table(
    "keys",
    metadata,
    Column("id", String(16), primary_key=True),
    _tenant(),
    Column("name", String(128), nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("scopes", String(256), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    Column("last_used_at", BigInteger),
    Index("ix_keys_tenant", "tenant"),
)

# A gateway that runs. Its heartbeat is a counter, not a time: whoever watches measures with its own
# monotonic clock how long it has stood still, so that no clock that is set can kill anybody.
instances = Table(
    "instances",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("started_at", BigInteger, nullable=False),
    Column("heartbeat", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
)

sandboxes = Table(
    "sandboxes",
    metadata,
    Column("id", String(64), primary_key=True),
    _tenant(),
    Column("key_id", String(16), nullable=False),
    Column("instance", String(32), ForeignKey("instances.id"), nullable=False),
    Column("opened_at", BigInteger, nullable=False),
    Column("lease_until", BigInteger, nullable=False),
    Column("closed_at", BigInteger),
    Column("reason", String(32)),
    Column("workspace", String(128)),
    Column("fence", BigInteger),
    Column("facts", Text, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    # What it may use of the day's memory until its lease ends; nothing once it is closed.
    Column("reserved_memory", BigInteger, nullable=False),
    CheckConstraint("(closed_at IS NULL) = (reason IS NULL)", name="closed"),
    Index("ix_sandboxes_tenant_opened_at_id", "tenant", "opened_at", "id"),
)
Index("ix_sandboxes_open", sandboxes.c.tenant, sandboxes.c.closed_at,
      sandboxes.c.reserved_memory,
      sqlite_where=sandboxes.c.closed_at.is_(None),
      postgresql_where=sandboxes.c.closed_at.is_(None))  # fmt: skip
Index("ix_sandboxes_open_instance", sandboxes.c.instance,
      sqlite_where=sandboxes.c.closed_at.is_(None),
      postgresql_where=sandboxes.c.closed_at.is_(None))  # fmt: skip

executions = Table(
    "executions",
    metadata,
    Column("id", String(64), primary_key=True),
    _tenant(),
    Column("key_id", String(16), nullable=False),
    Column("instance", String(32), ForeignKey("instances.id"), nullable=False),
    Column("sandbox_id", String(64)),
    Column("tool", String(64)),
    Column("job", Boolean, nullable=False),
    Column("begun_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("outcome", String(32)),
    Column("facts", Text, nullable=False),
    # What it may use at the most, while it runs; nothing once it has ended.
    Column("reserved_cpu", BigInteger, nullable=False),
    Column("reserved_memory", BigInteger, nullable=False),
    CheckConstraint("(ended_at IS NULL) = (outcome IS NULL)", name="ended"),
    Index("ix_executions_tenant_begun_at_id", "tenant", "begun_at", "id"),
    Index("ix_executions_begun_at", "begun_at"),
)
# It has all that is asked of what runs: SQLite then prefers it to the index above, which has what
# has ended as well.
Index("ix_executions_running", executions.c.tenant, executions.c.ended_at,
      executions.c.reserved_cpu, executions.c.reserved_memory,
      sqlite_where=executions.c.ended_at.is_(None),
      postgresql_where=executions.c.ended_at.is_(None))  # fmt: skip
Index("ix_executions_running_instance", executions.c.instance,
      sqlite_where=executions.c.ended_at.is_(None),
      postgresql_where=executions.c.ended_at.is_(None))  # fmt: skip

Index("ix_executions_tool", executions.c.tenant, executions.c.tool, executions.c.begun_at,
      executions.c.id,
      sqlite_where=executions.c.tool.is_not(None),
      postgresql_where=executions.c.tool.is_not(None))  # fmt: skip

# Beside `executions`, so that a listing does not read them.
records = Table(
    "records",
    metadata,
    Column("execution_id", String(64), ForeignKey("executions.id"), primary_key=True),
    Column("expires_at", BigInteger, nullable=False),
    Column("shortened", String(64), nullable=False),
    Column("record", LargeBinary, nullable=False),
    Index("ix_records_expires_at", "expires_at"),
)

idempotency = Table(
    "idempotency",
    metadata,
    _tenant(primary_key=True),
    Column("key", String(128), primary_key=True),
    Column("execution_id", String(64), nullable=False),
    Column("request_digest", String(128), nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Index("ix_idempotency_expires_at", "expires_at"),
    Index("ix_idempotency_execution_id", "execution_id"),
)

# Executions begun, a second each, of the last minute.
rates = Table(
    "rates",
    metadata,
    _tenant(primary_key=True),
    Column("second", BigInteger, primary_key=True),
    Column("begun", Integer, nullable=False),
)

usage = Table(
    "usage",
    metadata,
    _tenant(primary_key=True),
    Column("day", Integer, primary_key=True),
    Column("executions", BigInteger, nullable=False),
    Column("sandboxes", BigInteger, nullable=False),
    Column("cpu", BigInteger, nullable=False),  # microseconds
    Column("memory", BigInteger, nullable=False),  # MiB-milliseconds
    Column("wall", BigInteger, nullable=False),  # microseconds
)

artefacts = Table(
    "artefacts",
    metadata,
    _tenant(primary_key=True),
    Column("digest", String(71), primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("place", String(256), nullable=False, unique=True),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Index("ix_artefacts_expires_at", "expires_at"),
    Index("ix_artefacts_tenant_created_at_digest", "tenant", "created_at", "digest"),
)

workspaces = Table(
    "workspaces",
    metadata,
    _tenant(primary_key=True),
    Column("name", String(128), primary_key=True),
    # Each session that takes it gets the next one; only the latest may save.
    Column("fence", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("place", String(256), unique=True),
    Column("saved_at", BigInteger),
    Column("expires_at", BigInteger, nullable=False),
    Index("ix_workspaces_expires_at", "expires_at"),
)

# How much of the two is kept. An artefact counts as 4096 bytes at least.
holdings = Table(
    "holdings",
    metadata,
    _tenant(primary_key=True),
    Column("artefacts", BigInteger, nullable=False),
    Column("workspaces", BigInteger, nullable=False),
)

# A tool is its versions and which of them is called. What was removed leaves nothing but its audit.
tools = Table(
    "tools",
    metadata,
    _tenant(primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    Column("live", Integer, nullable=False),
    Column("latest", Integer, nullable=False),
    Column("disabled_at", BigInteger),
    Index("ix_tools_tenant_created_at_name", "tenant", "created_at", "name"),
)

# Never changed. `definition` is canonical JSON, of which `digest` is.
tool_versions = Table(
    "tool_versions",
    metadata,
    _tenant(primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("digest", String(71), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("key_id", String(16), nullable=False),
    Column("tier", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("tested", Integer, nullable=False),
    Column("definition", Text, nullable=False),
)

# Append-only. `body` is what is chained; the columns beside it repeat parts of it, for queries.
audit = Table(
    "audit",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", String(64), nullable=False, unique=True),
    Column("time", BigInteger, nullable=False),
    Column("tenant", String(64)),  # no reference: a record outlives what it tells of
    Column("action", String(64), nullable=False),
    Column("subject", Text, nullable=False),
    Column("body", Text, nullable=False),
    Index("ix_audit_tenant_number", "tenant", "number"),
)

# The last record. Whoever writes locks this row first, so that writers follow one another.
audit_head = Table(
    "audit_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("digest", String(64), nullable=False),
    CheckConstraint("id = 1", name="single"),
)
