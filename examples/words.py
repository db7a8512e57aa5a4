"""Statistics of a text: for people on standard output, for programs on descriptor 3."""

import json
import os
import re
import sys
from collections import Counter
from pathlib import Path

text = Path(sys.argv[1]).read_text(encoding="utf-8")
words = re.findall(r"[a-z]+(?:[-'\u2019][a-z]+)*", text.lower())
sentences = re.findall(r"[.!?]+", text)
counts = Counter(words)

print(f"{len(words)} words, {len(counts)} different, {len(sentences)} ends of sentences")
print("most used: " + ", ".join(f"{word} {count}" for word, count in counts.most_common(5)))
print("longest:   " + max(sorted(counts), key=len))

result = {"words": len(words), "different": len(counts), "alice": counts["alice"]}
with os.fdopen(3, "w") as channel:
    channel.write(json.dumps(result) + "\n")
