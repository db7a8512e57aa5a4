"""What this machine can start, found out by starting it."""

from stockade.executor.doctor.examination import examine
from stockade.executor.doctor.probe import probe_tiers
from stockade.executor.doctor.report import Report, TierStatus

__all__ = ["Report", "TierStatus", "examine", "probe_tiers"]
