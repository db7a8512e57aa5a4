"""Describe Fisher's irises: a table, a chart (chart.svg) and the numbers (summary.json)."""

import csv
import json
import statistics
from collections import defaultdict
from pathlib import Path

FEATURES = ("sepal_length", "sepal_width", "petal_length", "petal_width")
COLOURS = {"setosa": "#4477aa", "versicolor": "#ee6677", "virginica": "#228833"}

flowers = defaultdict(list)
with Path("iris.csv").open(newline="") as file:
    for row in csv.DictReader(file):
        flowers[row["species"]].append({name: float(row[name]) for name in FEATURES})

summary = {}
print(f"{'species':<12}{'flowers':>8}" + "".join(f"{name:>14}" for name in FEATURES))
for species, rows in flowers.items():
    means = {name: round(statistics.mean(row[name] for row in rows), 3) for name in FEATURES}
    summary[species] = {"flowers": len(rows), "means": means}
    print(f"{species:<12}{len(rows):>8}" + "".join(f"{means[name]:>14.3f}" for name in FEATURES))
Path("summary.json").write_text(json.dumps(summary, indent=2) + "\n")

dots = [
    f'<circle cx="{40 + 50 * row["petal_length"]:.0f}" cy="{280 - 90 * row["petal_width"]:.0f}" '
    f'r="3" fill="{COLOURS[species]}" fill-opacity="0.6"/>'
    for species, rows in flowers.items()
    for row in rows
]
names = [
    f'<text x="60" y="{30 + 18 * place}" fill="{COLOURS[species]}">{species}</text>'
    for place, species in enumerate(flowers)
]
Path("chart.svg").write_text(
    "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" width="420" height="320" '
            'font-family="sans-serif" font-size="13">',
            '<path d="M40 10V280H410" fill="none" stroke="#888"/>',
            '<text x="300" y="305">petal length, cm</text>',
            '<text transform="translate(25 130) rotate(-90)">petal width, cm</text>',
            *names,
            *dots,
            "</svg>\n",
        ]
    )
)
