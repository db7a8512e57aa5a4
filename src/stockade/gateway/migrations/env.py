"""Run by Alembic, on the connection that it was given."""

from alembic import context

from stockade.gateway.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
# The transaction is the caller's.
context.run_migrations()
