"""The host's end against the guest's: complete, in order, bounded, without a standstill."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from .simulation import PIPE, WINDOW, Simulation, Talk

SIZES = st.sampled_from([1, 2, 100, 65_535, 65_536, 65_537, 131_072, 300_000])
READS = st.sampled_from([1, 6, 7, 8, 1000, PIPE])


class Wires(RuleBasedStateMachine):
    """Any operation in any order, on both ends, over reads of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.simulation = Simulation()

    def pick(self, place: int) -> Talk:
        # Most often one of the last few: the older ones have mostly ended.
        talks = self.simulation.talks[-10:]
        return talks[place % len(talks)]

    def any_talk(self) -> bool:
        return bool(self.simulation.talks)

    @rule(span=st.integers(1, 4))
    def open(self, span: int) -> None:
        self.simulation.open(span)

    @precondition(any_talk)
    @rule(place=st.integers(0, 9), size=SIZES)
    def host_send(self, place: int, size: int) -> None:
        self.simulation.host_send(self.pick(place), size)

    @precondition(any_talk)
    @rule(place=st.integers(0, 9), size=SIZES)
    def guest_send(self, place: int, size: int) -> None:
        self.simulation.guest_send(self.pick(place), size)

    @precondition(any_talk)
    @rule(place=st.integers(0, 9), size=SIZES)
    def host_consume(self, place: int, size: int) -> None:
        self.simulation.host_consume(self.pick(place), size)

    @precondition(any_talk)
    @rule(place=st.integers(0, 9), size=SIZES)
    def guest_consume(self, place: int, size: int) -> None:
        self.simulation.guest_consume(self.pick(place), size)

    @precondition(any_talk)
    @rule(place=st.integers(0, 9), host=st.booleans(), guest=st.booleans())
    def close(self, place: int, host: bool, guest: bool) -> None:
        if host:
            self.simulation.host_close(self.pick(place))
        if guest:
            self.simulation.guest_close(self.pick(place))

    @precondition(any_talk)
    @rule(place=st.integers(0, 9), host=st.booleans(), guest=st.booleans())
    def reset(self, place: int, host: bool, guest: bool) -> None:
        if host:
            self.simulation.host_reset(self.pick(place))
        if guest:
            self.simulation.guest_reset(self.pick(place))

    @rule(size=READS)
    def deliver_down(self, size: int) -> None:
        self.simulation.deliver_down(size)

    @rule(size=READS)
    def deliver_up(self, size: int) -> None:
        self.simulation.deliver_up(size)

    @rule()
    def settle(self) -> None:
        self.simulation.settle()

    @invariant()
    def outstanding_is_bounded(self) -> None:
        # What has left a queue and was not consumed yet never exceeds the window.
        simulation = self.simulation
        for talk in simulation.talks:
            if simulation.at_host.get(talk.number) is talk and not talk.was_reset:
                left = talk.to_guest.sent - simulation.host.queued(talk.number)
                assert left - talk.to_guest.consumed <= WINDOW
            if simulation.at_guest.get(talk.number) is talk and not talk.was_reset:
                left = talk.to_host.sent - simulation.guest.queued(talk.number)
                assert left - talk.to_host.consumed <= WINDOW

    def teardown(self) -> None:
        self.simulation.finish()


TestWires = Wires.TestCase
TestWires.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


@pytest.mark.parametrize("seed", range(8))
def test_a_long_random_run(seed: int) -> None:
    # Thousands of operations with numbers used again and again lose and mix up nothing.
    chance = random.Random(seed)
    simulation = Simulation()
    for _ in range(1500):
        step = chance.randrange(12)
        if step == 0 or not simulation.talks:
            if len(simulation.at_host) < 40:
                simulation.open(chance.randint(1, 6))
            continue
        talk = chance.choice(simulation.talks[-12:])
        size = chance.choice([1, 50, 3000, 65_536, 70_000])
        if step == 1:
            chance.choice([simulation.host_close, simulation.guest_close])(talk)
        elif step == 2 and chance.random() < 0.5:
            chance.choice([simulation.host_reset, simulation.guest_reset])(talk)
        elif step <= 4:
            simulation.host_send(talk, size)
        elif step <= 6:
            simulation.guest_send(talk, size)
        elif step == 7:
            simulation.host_consume(talk, size)
        elif step == 8:
            simulation.guest_consume(talk, size)
        elif step == 9:
            simulation.deliver_down(chance.randint(1, PIPE))
        elif step == 10:
            simulation.deliver_up(chance.randint(1, PIPE))
        elif chance.random() < 0.1:
            simulation.settle()
    simulation.finish()


def test_numbers_are_used_again() -> None:
    # A session of many executions stays within one block of channels, however each ends.
    simulation = Simulation()
    for turn in range(30):
        talks = simulation.open(6)
        assert [talk.number for talk in talks] == [1, 2, 3, 4, 5, 6]
        for talk in talks:
            simulation.host_send(talk, 10)
        simulation.deliver_down(PIPE)
        for place, talk in enumerate(talks):
            simulation.guest_send(talk, 100_000)
            if (turn + place) % 3 == 0:
                simulation.host_reset(talk)
            if (turn + place) % 4 == 0:
                simulation.guest_reset(talk)
            simulation.host_close(talk)
            simulation.guest_close(talk)
        simulation.settle()
        for talk in talks:
            simulation.host_reset(talk)
        simulation.settle()


def test_everything_at_once_comes_to_no_standstill() -> None:
    # Megabytes both ways on six channels through pipes of 64 KiB arrive complete.
    simulation = Simulation()
    talks = simulation.open(6)
    simulation.deliver_down(PIPE)
    for talk in talks:
        simulation.host_send(talk, 3_000_000)
        simulation.guest_send(talk, 3_000_000)
        simulation.host_close(talk)
        simulation.guest_close(talk)
    simulation.finish()
    assert all(talk.to_host.came == talk.to_guest.came == 3_000_000 for talk in talks)


def test_a_channel_that_nobody_reads_holds_up_no_other() -> None:
    # Its window fills and it waits; the others go on at full size.
    simulation = Simulation()
    stuck, lively = simulation.open(2)
    simulation.deliver_down(PIPE)
    simulation.guest_send(stuck, 5_000_000)
    simulation.host_send(stuck, 5_000_000)
    simulation.guest_send(lively, 2_000_000)
    simulation.host_send(lively, 2_000_000)
    for _ in range(400):
        simulation.deliver_down(PIPE)
        simulation.deliver_up(PIPE)
        simulation.host_consume(lively, WINDOW)
        simulation.guest_consume(lively, WINDOW)
    assert lively.to_host.came == lively.to_guest.came == 2_000_000
    # No more than the window has left either queue.
    assert WINDOW - 65_536 < stuck.to_host.came <= WINDOW
    assert WINDOW - 65_536 < stuck.to_guest.came <= WINDOW
    simulation.finish()


@pytest.mark.parametrize("busy", [1, 5])
def test_a_huge_queue_delays_another_channel_within_a_bound(busy: int) -> None:
    # A late message waits for what is on its way and one frame of each busy channel, each way.
    simulation = Simulation()
    *streams, quiet = simulation.open(busy + 1)
    simulation.deliver_down(PIPE)
    for talk in streams:
        simulation.host_send(talk, 4_000_000)
        simulation.guest_send(talk, 4_000_000)
    for _ in range(10):
        simulation.deliver_down(PIPE)
        simulation.deliver_up(PIPE)
        for talk in streams:
            simulation.host_consume(talk, WINDOW)
            simulation.guest_consume(talk, WINDOW)
    bound = busy * WINDOW + PIPE + (busy + 1) * (65_536 + 7)
    for direction, send, deliver in (
        (quiet.to_guest, simulation.host_send, simulation.deliver_down),
        (quiet.to_host, simulation.guest_send, simulation.deliver_up),
    ):
        send(quiet, 100)
        ahead = 0
        while not direction.came:
            ahead += deliver(PIPE)
            assert ahead <= bound
            for talk in streams:
                simulation.host_consume(talk, WINDOW)
                simulation.guest_consume(talk, WINDOW)
    simulation.finish()


def test_a_limited_batch_shortens_the_wait() -> None:
    # Whoever writes in batches of 64 KiB delays a late message by two frames only.
    simulation = Simulation()
    connection = simulation.host
    stream, quiet = simulation.open(2)
    connection.send(stream.number, bytes(4_000_000))
    connection.outgoing(PIPE)
    connection.send(quiet.number, b"late")
    batch = connection.outgoing(PIPE) + connection.outgoing(PIPE)
    assert batch.index(b"late") <= 2 * (65_536 + 7)
