"""What is to be installed: its key, and what it may reach."""

import pytest

from stockade.packages import Indexes, Recipe
from stockade.port import InvalidRequest


def test_every_part_is_in_the_key() -> None:
    python = Recipe(python=b"six\n")
    keys = {
        python.key("image"),
        python.key("another image"),
        python.with_scripts().key("image"),
        Recipe(python=b"six\nidna\n").key("image"),
        Recipe(node=b"six\n").key("image"),
        Recipe(node=b"{}", node_lock=b"{}").key("image"),
        Recipe(python=b"six\n", indexes=Indexes(python="https://index.example/simple")).key(
            "image"
        ),
    }
    assert len(keys) == 7
    assert Recipe(python=b"six\n").key("image") == python.key("image")


def test_a_recipe_reaches_the_indexes_that_it_needs() -> None:
    assert [str(rule) for rule in Indexes().rules(Recipe(python=b""))] == [
        "https://pypi.org:443",
        "https://files.pythonhosted.org:443",
    ]
    assert [str(rule) for rule in Indexes().rules(Recipe(node=b"{}"))] == [
        "https://registry.npmjs.org:443"
    ]
    own = Indexes(python="http://index.example:8080/simple", python_files=())
    assert [str(rule) for rule in own.rules(Recipe(python=b""))] == ["http://index.example:8080"]


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc",
        "index.example",
        "https://user:word@index.example",
        "https://",
        "",
        "https://index.example:99999",
        "https://[::1/index",
    ],
)
def test_what_is_no_index_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="index"):
        Indexes(python=url)


def test_a_recipe_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="neither"):
        Recipe()
    with pytest.raises(InvalidRequest, match="without"):
        Recipe(python=b"", node_lock=b"{}")
    with pytest.raises(InvalidRequest, match="at most"):
        Recipe(python=b"x" * (1 << 20) + b"x")
