"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:

    op.create_table(
        "audit",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=True),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit")),
        sa.UniqueConstraint("digest", name=op.f("uq_audit_digest")),
    )
    op.create_index("ix_audit_tenant_number", "audit", ["tenant", "number"], unique=False)
    op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_audit_head_single")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
    )
    op.create_table(
        "instances",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("heartbeat", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_instances")),
    )
    op.create_table(
        "tenants",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("disabled_at", sa.BigInteger(), nullable=True),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("budgets", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_tenants")),
    )
    op.create_table(
        "artefacts",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("place", sa.String(length=256), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name=op.f("fk_artefacts_tenant")),
        sa.PrimaryKeyConstraint("tenant", "digest", name=op.f("pk_artefacts")),
        sa.UniqueConstraint("place", name=op.f("uq_artefacts_place")),
    )
    op.create_index("ix_artefacts_expires_at", "artefacts", ["expires_at"], unique=False)
    op.create_index(
        "ix_artefacts_tenant_created_at_digest",
        "artefacts",
        ["tenant", "created_at", "digest"],
        unique=False,
    )
    op.create_index("ix_artefacts_tenant_size", "artefacts", ["tenant", "size"], unique=False)
    op.create_table(
        "executions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=16), nullable=False),
        sa.Column("instance", sa.String(length=32), nullable=False),
        sa.Column("sandbox_id", sa.String(length=64), nullable=True),
        sa.Column("job", sa.Boolean(), nullable=False),
        sa.Column("begun_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.String(length=32), nullable=True),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("reserved_cpu", sa.BigInteger(), nullable=False),
        sa.Column("reserved_memory", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "(ended_at IS NULL) = (outcome IS NULL)", name=op.f("ck_executions_ended")
        ),
        sa.ForeignKeyConstraint(
            ["instance"], ["instances.id"], name=op.f("fk_executions_instance")
        ),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name=op.f("fk_executions_tenant")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_executions")),
    )
    op.create_index("ix_executions_begun_at", "executions", ["begun_at"], unique=False)
    op.create_index(
        "ix_executions_running",
        "executions",
        ["tenant"],
        unique=False,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_index(
        "ix_executions_running_instance",
        "executions",
        ["instance"],
        unique=False,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_index(
        "ix_executions_tenant_begun_at_id", "executions", ["tenant", "begun_at", "id"], unique=False
    )
    op.create_table(
        "idempotency",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=128), nullable=False),
        sa.Column("execution_id", sa.String(length=64), nullable=False),
        sa.Column("request_digest", sa.String(length=128), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name=op.f("fk_idempotency_tenant")),
        sa.PrimaryKeyConstraint("tenant", "key", name=op.f("pk_idempotency")),
    )
    op.create_index("ix_idempotency_expires_at", "idempotency", ["expires_at"], unique=False)
    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("scopes", sa.String(length=256), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("last_used_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name=op.f("fk_keys_tenant")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
    )
    op.create_index("ix_keys_tenant", "keys", ["tenant"], unique=False)
    op.create_table(
        "rates",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("second", sa.BigInteger(), nullable=False),
        sa.Column("begun", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name=op.f("fk_rates_tenant")),
        sa.PrimaryKeyConstraint("tenant", "second", name=op.f("pk_rates")),
    )
    op.create_table(
        "sandboxes",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=16), nullable=False),
        sa.Column("instance", sa.String(length=32), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), nullable=False),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("workspace", sa.String(length=128), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=True),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("reserved_memory", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "(closed_at IS NULL) = (reason IS NULL)", name=op.f("ck_sandboxes_closed")
        ),
        sa.ForeignKeyConstraint(["instance"], ["instances.id"], name=op.f("fk_sandboxes_instance")),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name=op.f("fk_sandboxes_tenant")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sandboxes")),
    )
    op.create_index(
        "ix_sandboxes_open",
        "sandboxes",
        ["tenant"],
        unique=False,
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.create_index(
        "ix_sandboxes_open_instance",
        "sandboxes",
        ["instance"],
        unique=False,
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.create_index(
        "ix_sandboxes_tenant_opened_at_id", "sandboxes", ["tenant", "opened_at", "id"], unique=False
    )
    op.create_table(
        "usage",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("executions", sa.BigInteger(), nullable=False),
        sa.Column("sandboxes", sa.BigInteger(), nullable=False),
        sa.Column("cpu", sa.BigInteger(), nullable=False),
        sa.Column("memory", sa.BigInteger(), nullable=False),
        sa.Column("wall", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name=op.f("fk_usage_tenant")),
        sa.PrimaryKeyConstraint("tenant", "day", name=op.f("pk_usage")),
    )
    op.create_table(
        "workspaces",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("place", sa.String(length=256), nullable=True),
        sa.Column("saved_at", sa.BigInteger(), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name=op.f("fk_workspaces_tenant")),
        sa.PrimaryKeyConstraint("tenant", "name", name=op.f("pk_workspaces")),
        sa.UniqueConstraint("place", name=op.f("uq_workspaces_place")),
    )
    op.create_index("ix_workspaces_expires_at", "workspaces", ["expires_at"], unique=False)
    op.create_table(
        "records",
        sa.Column("execution_id", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("shortened", sa.String(length=64), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["execution_id"], ["executions.id"], name=op.f("fk_records_execution_id")
        ),
        sa.PrimaryKeyConstraint("execution_id", name=op.f("pk_records")),
    )
    op.create_index("ix_records_expires_at", "records", ["expires_at"], unique=False)

    op.execute(
        "INSERT INTO audit_head (id, number, digest) "
        "VALUES (1, 0, '0000000000000000000000000000000000000000000000000000000000000000')"
    )
