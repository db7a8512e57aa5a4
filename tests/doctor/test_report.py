"""Which trust level is served by what was found."""

from stockade.executor.doctor import Report, TierStatus
from stockade.port import Tier, TrustLevel


def test_what_software_emulates_serves_no_level() -> None:
    """Emulation is no boundary, whatever the tier is called."""
    gvisor = TierStatus(Tier.GVISOR, True, "")
    machine = TierStatus(Tier.MICROVM, True, "")
    emulated = TierStatus(Tier.MICROVM, True, "", emulated=True)
    none = {TrustLevel.REGULATED: None}
    assert Report((gvisor, machine)).serving == dict.fromkeys(TrustLevel, Tier.MICROVM) | none
    assert Report((gvisor, emulated)).serving == dict.fromkeys(TrustLevel, Tier.GVISOR) | none
    assert Report((emulated,)).serving == dict.fromkeys(TrustLevel)
    assert Report((emulated,)).usable
