"""What is parked in one executor: how much of each profile, for how long, and what gives way."""

from collections.abc import Callable
from itertools import islice

from stockade.executor.pool.demand import Demand, allot
from stockade.executor.pool.metrics import ShelfMetrics, Tally
from stockade.executor.pool.policy import PoolPolicy
from stockade.executor.pool.shelf import Parked, Shelf
from stockade.executor.sandbox import Profile, Sandbox

# A parked sandbox is replaced at this part of its highest age, and spread over as much more:
# those that were parked together are not all replaced together.
_REPLACE_AT, _REPLACE_SPREAD = 0.6, 0.3
# Multiples of it, modulo one, are spread evenly however many there are.
_GOLDEN = 0.618_033_988_75
_DEMAND_HALVES = 5
"""How often a demand is halved before its profile is idle."""

Dispose = Callable[[Sandbox], None]


class Shelves:
    """A shelf for each profile, by the time it was last used.

    Nothing here waits: ``now`` is the caller's clock, ``dispose`` begins a destruction.
    Never more than the policy's budget is parked, nor more of a profile than its ceiling.
    """

    def __init__(self, policy: PoolPolicy, tally: Tally, dispose: Dispose) -> None:
        self._policy = policy
        self._tally = tally
        self._dispose = dispose
        self._of_profile: dict[Profile, Shelf] = {}  # the one used last comes last
        self._of_tenant: dict[str, int] = {}
        self._parked_since_ever = 0
        self.parked_bytes = 0

    def __repr__(self) -> str:
        return f"{len(self)} profiles: {self.parked} parked"

    def __len__(self) -> int:
        return len(self._of_profile)

    @property
    def parked(self) -> int:
        """How many sandboxes are parked."""
        return sum(len(shelf.parked) for shelf in self._of_profile.values())

    def all(self) -> list[Shelf]:
        """Each; the one used last comes first."""
        return list(reversed(self._of_profile.values()))

    def has(self, tenant: str) -> bool:
        """Whether any shelf is this tenant's."""
        return tenant in self._of_tenant

    def use(self, profile: Profile, now: float) -> Shelf:
        """The profile's shelf, which is the one used last from now on."""
        shelf = self._of_profile.pop(profile, None)
        if shelf is None:
            policy = self._policy
            shelf = Shelf(profile, Demand(policy.ceiling, policy.idle_seconds / _DEMAND_HALVES))
            self._of_tenant[profile.tenant] = self._of_tenant.get(profile.tenant, 0) + 1
        # Ceilings that can be set again later do not tell profiles apart: the last ones count.
        shelf.profile = profile
        shelf.taken_at = now
        self._of_profile[profile] = shelf
        return shelf

    def target(self, shelf: Shelf, now: float) -> int:
        """How many the demand asks for, within floor and ceiling; none of an idle profile."""
        policy = self._policy
        if now - shelf.taken_at >= policy.idle_seconds:
            return 0
        return min(max(shelf.demand.look(now), policy.floor), policy.ceiling)

    def allotments(self, now: float) -> dict[Shelf, int]:
        """How many may be parked of each profile, within the budget; of all others none."""
        kept = list(islice(reversed(self._of_profile.values()), self._policy.profiles))
        wanted = [(self.target(shelf, now), shelf.size) for shelf in kept]
        return dict(zip(kept, allot(wanted, self._policy.memory_budget_bytes), strict=True))

    def park(self, shelf: Shelf, sandbox: Sandbox, now: float) -> bool:
        """Park a sandbox that nobody waits for, if it is wanted."""
        allotted = self.allotments(now)
        want = allotted.get(shelf, 0)
        if shelf.fresh(now) >= want:
            return False
        if len(shelf.parked) >= want:  # it replaces one
            self._tally.evicted_age += 1
            self._dispose(self.unpark(shelf))
        size = sandbox.boundary.parked_bytes
        while self.parked_bytes + size > self._policy.memory_budget_bytes:
            if not self._evict_surplus(allotted):
                return False
        age = self._policy.max_age_seconds
        self._parked_since_ever += 1
        spread = _REPLACE_SPREAD * (self._parked_since_ever * _GOLDEN % 1.0)
        sandbox.boundary.pause()
        shelf.parked.append(Parked(sandbox, size, now + age * (_REPLACE_AT + spread), now + age))
        self.parked_bytes += size
        shelf.demand.replace()
        return True

    def unpark(self, shelf: Shelf) -> Sandbox:
        """Take the oldest off the shelf."""
        parked = shelf.parked.popleft()
        self.parked_bytes -= parked.size
        return parked.sandbox

    def take(self, shelf: Shelf, now: float) -> Sandbox | None:
        """The oldest that lives and is not too old."""
        while shelf.parked:
            expires_at = shelf.parked[0].expires_at
            sandbox = self.unpark(shelf)
            if sandbox.alive and now < expires_at:
                sandbox.boundary.resume()
                return sandbox
            self._count_useless(sandbox)
            self._dispose(sandbox)
        return None

    def give_way(self) -> bool:
        """Let go of one, of the profile that was used least recently."""
        for shelf in self._of_profile.values():
            if shelf.parked:
                self._tally.evicted_room += 1
                self._dispose(self.unpark(shelf))
                return True
        return False

    def clear(self, shelf: Shelf) -> int:
        """Let go of all that is parked of a profile; how many it was."""
        count = len(shelf.parked)
        while shelf.parked:
            self._dispose(self.unpark(shelf))
        return count

    def squeezed(self) -> list[Shelf]:
        """Those beyond the number of profiles to park for, the least recently used first."""
        return list(islice(self._of_profile.values(), max(0, len(self) - self._policy.profiles)))

    def sweep(self, now: float) -> list[Shelf]:
        """Let go of what is dead, too old, or not wanted any more; who lacks some then."""
        allotted = self.allotments(now)
        lacking = []
        for shelf in self._of_profile.values():
            want = allotted.get(shelf, 0)
            useless = [p for p in shelf.parked if now >= p.expires_at or not p.sandbox.alive]
            for parked in useless:
                shelf.parked.remove(parked)
                self.parked_bytes -= parked.size
                self._count_useless(parked.sandbox)
                self._dispose(parked.sandbox)
            target = self.target(shelf, now) if want else 0
            while len(shelf.parked) > want:
                if len(shelf.parked) > target:
                    self._tally.evicted_idle += 1
                else:
                    self._tally.evicted_memory += 1
                self._dispose(self.unpark(shelf))
            if shelf.fresh(now) < want:
                lacking.append(shelf)
        return lacking

    def drop_if_unused(self, shelf: Shelf, now: float) -> bool:
        """Forget a profile that has nothing, and is idle or squeezed out by others."""
        if shelf.alive or shelf.waiting or self._of_profile.get(shelf.profile) is not shelf:
            return False
        idle = now - max(shelf.taken_at, shelf.ended_at) >= self._policy.idle_seconds
        if not idle and shelf not in self.squeezed():
            return False
        del self._of_profile[shelf.profile]
        tenant = shelf.profile.tenant
        self._of_tenant[tenant] -= 1
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
        return True

    def metrics(self, now: float) -> tuple[ShelfMetrics, ...]:
        """Each profile's numbers; the one used last comes first."""
        allotted = self.allotments(now)
        return tuple(
            ShelfMetrics(
                tier=shelf.profile.tier,
                tenant=shelf.profile.tenant,
                target=self.target(shelf, now),
                allotted=allotted.get(shelf, 0),
                parked=len(shelf.parked),
                parked_bytes=sum(each.size for each in shelf.parked),
                in_use=len(shelf.in_use),
                waiting=len(shelf.waiting),
                failures=shelf.failures,
            )
            for shelf in self.all()
        )

    def _evict_surplus(self, allotted: dict[Shelf, int]) -> bool:
        for shelf in self._of_profile.values():
            if len(shelf.parked) > allotted.get(shelf, 0):
                self._tally.evicted_memory += 1
                self._dispose(self.unpark(shelf))
                return True
        return False

    def _count_useless(self, sandbox: Sandbox) -> None:
        if sandbox.alive:
            self._tally.evicted_age += 1
        else:
            self._tally.found_dead += 1
