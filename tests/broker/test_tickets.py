"""A ticket is good once, soon, and for whom it was given."""

import pytest

from stockade.broker.tickets import TicketRefused, Tickets


def test_once() -> None:
    tickets = Tickets()
    ticket = tickets.issue("acme", "run1", ("key",))
    assert tickets.redeem(ticket, "acme", "run1") == ("key",)
    with pytest.raises(TicketRefused):
        tickets.redeem(ticket, "acme", "run1")


@pytest.mark.parametrize(("tenant", "execution"), [("evil", "run1"), ("acme", "run2")])
def test_for_another_it_is_none_and_used_up(tenant: str, execution: str) -> None:
    tickets = Tickets()
    ticket = tickets.issue("acme", "run1", ("key",))
    with pytest.raises(TicketRefused):
        tickets.redeem(ticket, tenant, execution)
    with pytest.raises(TicketRefused):
        tickets.redeem(ticket, "acme", "run1")


def test_too_old() -> None:
    now = 100.0
    tickets = Tickets(clock=lambda: now)
    ticket = tickets.issue("acme", "run1", ("key",))
    now += 60
    with pytest.raises(TicketRefused):
        tickets.redeem(ticket, "acme", "run1")


def test_old_ones_are_forgotten() -> None:
    now = 0.0
    tickets = Tickets(clock=lambda: now)
    for _ in range(100):
        now += 10
        tickets.issue("acme", "run1", ("key",))
    assert repr(tickets) == "<Tickets 6 out>"


@pytest.mark.parametrize("guess", ["", "0" * 64, "\ud800", "x" * 100_000])
def test_guesses(guess: str) -> None:
    with pytest.raises(TicketRefused):
        Tickets().redeem(guess, "acme", "run1")
