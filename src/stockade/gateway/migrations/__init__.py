"""The database's revisions, by Alembic."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text

_LOCK = 0x53746F636B616465  # of PostgreSQL's advisory locks: this program's name


class NewerSchema(Exception):
    """The database has a revision that is unknown here."""


def revisions(engine: Engine) -> tuple[str | None, str]:
    """The database's revision, and this version's. Raises :class:`NewerSchema`."""
    script = ScriptDirectory.from_config(_config())
    wanted = script.get_current_head()
    assert wanted is not None
    with engine.connect() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
    if current is not None and current not in {each.revision for each in script.walk_revisions()}:
        raise NewerSchema(current)
    return current, wanted


def upgrade(engine: Engine, to: str = "head") -> str:
    """Go up to a revision, in one transaction; another one that does the same is waited for."""
    config = _config()
    with (
        engine.connect().execution_options(stockade_writes=True) as connection,
        connection.begin(),
    ):
        if engine.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
        config.attributes["connection"] = connection
        command.upgrade(config, to)
        current = MigrationContext.configure(connection).get_current_revision()
    assert current is not None
    return current


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
