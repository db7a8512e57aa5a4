"""The pool's rules by themselves: what may be asked of it, demand, and the budget's division."""

import math
import os
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.executor.pool import PoolMetrics, PoolPolicy
from stockade.executor.pool.demand import Demand, allot
from stockade.executor.pool.metrics import Tally
from stockade.port import InvalidRequest

pytestmark = pytest.mark.plain_user


# --- the policy ---


def test_the_default_policy_stands() -> None:
    policy = PoolPolicy()
    assert policy.starts == 2 * len(os.sched_getaffinity(0))
    assert PoolPolicy.fixed(3) == PoolPolicy(floor=3, ceiling=3)
    assert policy.queue >= 200  # a burst of 200 calls is to be served


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"floor": -1}, "pool.floor: -1 is outside 0 to 100000"),
        ({"floor": 5, "ceiling": 4}, "pool.floor: 5 exceeds pool.ceiling (4): no more than the "),
        ({"ceiling": 2.5}, "pool.ceiling: 2.5 is not a whole number"),
        ({"ceiling": True}, "pool.ceiling: True is not a whole number"),
        ({"memory_budget_bytes": "256M"}, "pool.memory_budget_bytes: '256M' is not a whole number"),
        ({"max_age_seconds": 0}, "pool.max_age_seconds: 0 is outside 0.1 to 86400"),
        ({"idle_seconds": math.nan}, "pool.idle_seconds: nan is outside 0.1 to 86400"),
        ({"wait_seconds": math.inf}, "pool.wait_seconds: inf is outside 0.01 to 86400"),
        ({"wait_seconds": None}, "pool.wait_seconds: None is not a number"),
        ({"starts": 0}, "pool.starts: 0 is outside 1 to 1024"),
        ({"queue": 0}, "pool.queue: 0 is outside 1 to 100000"),
        ({"profiles": 0}, "pool.profiles: 0 is outside 1 to 100000"),
        ({"most_alive": 0}, "pool.most_alive: 0 is outside 1 to 100000"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        PoolPolicy(**wrong)
    assert str(refused.value).startswith(message)


def test_every_total_is_in_the_metrics() -> None:
    assert [each.name for each in fields(Tally)] == [
        each.name for each in fields(PoolMetrics)[: len(fields(Tally))]
    ]


# --- demand ---


def test_demand_is_what_would_have_served_every_call() -> None:
    demand = Demand(most=100, half_life=60)
    for _ in range(5):
        demand.take()
    demand.replace()
    demand.replace()
    for _ in range(4):
        demand.take()
    # Seven were owed at once, and never more.
    assert demand.look(0.0) == 7
    for _ in range(7):
        demand.replace()
    assert [demand.look(float(after)) for after in (0, 60, 120, 600)] == [7, 4, 2, 1]


def test_a_small_burst_does_not_keep_a_large_ones_demand_up() -> None:
    demand = Demand(most=100, half_life=60)
    for _ in range(16):
        demand.take()
    assert demand.look(0.0) == 16
    demand.settle()
    demand.look(0.0)
    for _ in range(3):
        demand.take()
    assert demand.look(60.0) == 8
    demand.settle()
    assert demand.look(120.0) == 4
    assert demand.look(240.0) == 1


@given(
    st.integers(0, 40),
    st.lists(st.tuples(st.sampled_from(["take", "replace", "settle"]), st.floats(0, 100))),
)
def test_demand_is_never_above_the_most_and_is_forgotten(
    most: int, steps: list[tuple[str, float]]
) -> None:
    demand, now = Demand(most, half_life=60), 0.0
    for step, pause in steps:
        getattr(demand, step)()
        now += pause
        assert 0 <= demand.look(now) <= most
    demand.settle()
    demand.look(now)
    assert demand.look(now + 60 * 10) <= math.ceil(most / 1024)


# --- the budget ---


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30)), max_size=12),
    st.integers(0, 2000),
)
def test_a_budget_is_kept_and_used(wanted: list[tuple[int, int]], budget: int) -> None:
    allotted = allot(wanted, budget)
    assert len(allotted) == len(wanted)
    assert all(0 <= got <= want for got, (want, _) in zip(allotted, wanted, strict=True))
    used = sum(got * size for got, (_, size) in zip(allotted, wanted, strict=True))
    assert used <= budget
    # Nobody lacks one for which there is room.
    assert all(
        got == want or used + size > budget
        for got, (want, size) in zip(allotted, wanted, strict=True)
    )


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(1, 20), st.integers(0, 400)
)
def test_each_gets_one_before_any_gets_a_second(wants: list[int], size: int, budget: int) -> None:
    allotted = allot([(want, size) for want in wants], budget)
    highest = max(allotted)
    for index, (want, got) in enumerate(zip(wants, allotted, strict=True)):
        # Whoever has less than another by more than the odd one wanted no more.
        assert got in (want, highest, highest - 1)
        if got < want and got == highest - 1:
            # The odd ones went to those that come first.
            assert all(
                later <= got or wants[other] <= got
                for other, later in enumerate(allotted[index:], index)
            )
