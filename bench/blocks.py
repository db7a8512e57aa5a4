"""Generated parts of a page that is else written by hand: between two comments with a name."""


def replace(page: str, name: str, content: str) -> str:
    """The page with the block of that name anew. Raises :class:`ValueError` if it has none."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no block {name!r}")
    return f"{head}{begin}{content.rstrip()}\n{end}{tail}"


def read(page: str, name: str) -> str:
    """What stands in the block of that name."""
    _, found, rest = page.partition(f"<!-- {name}: begin -->\n")
    content, closed, _ = rest.partition(f"<!-- {name}: end -->")
    if not found or not closed:
        raise ValueError(f"the page has no block {name!r}")
    return content
