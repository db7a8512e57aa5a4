"""What a regular expression costs before and while it runs.

RE2 matches in linear time, but it compiles a pattern anew at every call, and a short one can
compile to a large program: ``(?i)(\\pL|\\pN){0,80}`` takes a quarter of a second.
"""

import re
from typing import Final

# A part of a pattern, longest first. What is not told apart here counts as one character.
_PART: Final = re.compile(
    r"""
    (?P<property>\\[pP](?:\{\^?\w*\}?|.))
    | (?P<escape>\\x\{[0-9a-fA-F]*\} | \\.)
    | (?P<class>\[\^?\]?(?:\\[pP]\{\^?\w*\}? | \\. | \[:\^?\w+:\] | [^\]\\])*\]?)
    | (?P<counted>\{(?P<low>\d+)(?:,(?P<high>\d*))?\})
    | (?P<open>\( (?:\?(?:P?<\w*>|[imsU-]*:?))?)
    | (?P<close>\))
    | (?P<repeat>[*+?])
    | (?P<any>.)
    """,
    re.VERBOSE | re.DOTALL,
)

# In instructions of RE2's program, from above: letters of all scripts are some 700 ranges.
_PROPERTY: Final = 700
_WIDE: Final = 12  # any character at all, by its UTF-8 bytes
_UNKNOWN: Final = 1 << 30
_FOLDED: Final = 4  # without case: each range has others beside it


def weight(pattern: str) -> int:
    """About how many instructions the pattern compiles to, from above."""
    if r"\Q" in pattern:  # what stands between \Q and \E would be read wrongly here
        return _UNKNOWN
    groups = [0]
    last = 0
    for part in _PART.finditer(pattern):
        kind, text = part.lastgroup, part.group()
        if part["counted"] is not None:
            low, high = int(part["low"][:9]), int((part["high"] or "0")[:9])
            # The part before stands once already.
            groups[-1] += last * (max(low + 1, high, 1) - 1)
            last *= max(low + 1, high, 1)
            continue
        if kind == "open":
            groups.append(0)
            last = 0
            continue
        if kind == "close":
            last = groups.pop() + 2 if len(groups) > 1 else 1
        elif kind == "repeat":
            groups[-1] += last + 1  # x+ may be written as xx*
            last = 2 * last + 1
            continue
        elif kind == "property":
            last = _PROPERTY
        elif kind == "class":
            last = _class_weight(text)
        elif kind == "any" and text != ".":
            last = 1 if text.isascii() else 4
        elif kind == "escape" and text[1] not in "DWSDPXCBb":
            last = 2
        else:
            last = _WIDE
        groups[-1] += last
    total = sum(groups) + 1
    return total * _FOLDED if re.search(r"\(\?[msU]*i", pattern) else total


def _class_weight(text: str) -> int:
    ranges = len(text)
    result = _WIDE + ranges + _PROPERTY * len(re.findall(r"\\[pP]", text))
    return result if text.isascii() and r"\x{" not in text else result + 4 * ranges
