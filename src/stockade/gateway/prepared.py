"""Statements of the path that every execution takes, compiled once and run by the driver itself.

SQLAlchemy compiles, binds and wraps anew for each call, which was four fifths of what a begin and an
end cost. The statements are its own; only their running is short.
"""

from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection


class _Compiled(NamedTuple):
    text: str
    names: Sequence[str] | None
    """Where the driver takes values by their place."""
    constants: dict[str, Any]
    """Values that the statement brings itself."""


class Prepared:
    """A statement with bound parameters. It raises what the driver raises."""

    def __init__(self, statement: Any, columns: Sequence[str] | None = None) -> None:
        self._statement = statement
        self._columns = columns
        self._compiled: dict[str, _Compiled] = {}
        self._row: Callable[[Any], Any] | None = None

    def run(self, connection: Connection, **values: Any) -> int:
        """Return how many rows it touched."""
        return int(self._execute(connection, values).rowcount)

    def run_many(self, connection: Connection, values: Sequence[dict[str, Any]]) -> None:
        """Once for each."""
        compiled = self._for(connection)
        cursor = connection.connection.cursor()
        cursor.executemany(compiled.text, [_bound(compiled, each) for each in values])

    def one(self, connection: Connection, **values: Any) -> Any:
        """The one row, or ``None``."""
        cursor = self._execute(connection, values)
        found = cursor.fetchone()
        if found is None:
            return None
        assert cursor.fetchone() is None
        if self._row is None:
            make: Any = namedtuple  # whose names a checker cannot know here
            self._row = make("Row", [each[0] for each in cursor.description])._make
        return self._row(found)

    def _execute(self, connection: Connection, values: dict[str, Any]) -> Any:
        compiled = self._for(connection)
        cursor = connection.connection.cursor()
        cursor.execute(compiled.text, _bound(compiled, values))
        return cursor

    def _for(self, connection: Connection) -> _Compiled:
        dialect = connection.dialect
        found = self._compiled.get(dialect.name)
        if found is None:
            compiled = self._statement.compile(dialect=dialect, column_keys=self._columns)
            names = compiled.positiontup if compiled.positional else None
            constants = {
                name: value for name, value in compiled.params.items() if value is not None
            }
            found = self._compiled[dialect.name] = _Compiled(str(compiled), names, constants)
        return found


def _bound(compiled: _Compiled, values: dict[str, Any]) -> Any:
    if compiled.constants:
        values = {**compiled.constants, **values}
    return values if compiled.names is None else [values[name] for name in compiled.names]
