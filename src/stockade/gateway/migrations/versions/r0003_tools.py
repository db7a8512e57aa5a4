"""Tools of tenants, and which execution was a call of one."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_OF_A_TOOL = sa.text("tool IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        "tools",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("live", sa.Integer(), nullable=False),
        sa.Column("latest", sa.Integer(), nullable=False),
        sa.Column("disabled_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name=op.f("fk_tools_tenant")),
        sa.PrimaryKeyConstraint("tenant", "name", name=op.f("pk_tools")),
    )
    op.create_index("ix_tools_tenant_created_at_name", "tools", ["tenant", "created_at", "name"])
    op.create_table(
        "tool_versions",
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("key_id", sa.String(length=16), nullable=False),
        sa.Column("tier", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("tested", sa.Integer(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name=op.f("fk_tool_versions_tenant")),
        sa.PrimaryKeyConstraint("tenant", "name", "version", name=op.f("pk_tool_versions")),
    )
    op.add_column("executions", sa.Column("tool", sa.String(length=64), nullable=True))
    op.create_index(
        "ix_executions_tool",
        "executions",
        ["tenant", "tool", "begun_at", "id"],
        sqlite_where=_OF_A_TOOL,
        postgresql_where=_OF_A_TOOL,
    )
