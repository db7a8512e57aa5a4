"""matplotlib: a chart with text, written as a PNG of 640 by 480."""

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

figure, axes = pyplot.subplots(figsize=(6.4, 4.8), dpi=100)
axes.plot(range(10), [x * x for x in range(10)], label="squares")
axes.set_title("a chart")
axes.legend()
figure.savefig("chart.png")
print(len(figure.axes))
