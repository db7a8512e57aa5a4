"""docs/egress.md has what there is."""

import re
from pathlib import Path

from stockade.egress.addresses import SPECIAL

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/egress.md").read_text()


def test_every_special_network_is_on_the_page() -> None:
    for each in SPECIAL:
        assert f"| `{each.network}` | {each.what} | {each.source} |" in PAGE


def test_every_reason_is_on_the_page() -> None:
    reasons = {each.reason for each in SPECIAL}
    for file in (ROOT / "src/stockade/egress").glob("*.py"):
        text = file.read_text()
        reasons |= set(re.findall(r'(?:BadHost|Denied|_denied)\(\s*(?:steps, )?"([a-z-]+)"', text))
        reasons |= set(
            re.findall(r'Refusal\(\s*\d{3}(?: if \w+(?:\.\w+)? else \d{3})?,\s*"([a-z-]+)"', text)
        )
    assert len(reasons) > 30
    for reason in reasons:
        assert f"`{reason}`" in PAGE, reason
