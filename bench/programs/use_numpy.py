"""numpy: linear algebra by its library's threads, a transform, random numbers, a file."""

import numpy

generator = numpy.random.default_rng(7)
# Large enough for the library to divide it among threads.
matrix = generator.standard_normal((300, 300))
solution = numpy.linalg.solve(matrix, matrix @ numpy.arange(300.0))
assert numpy.allclose(solution, numpy.arange(300.0))

wave = numpy.sin(2 * numpy.pi * 5 * numpy.arange(1024) / 1024)
assert numpy.argmax(numpy.abs(numpy.fft.rfft(wave))) == 5

numpy.savez_compressed("arrays.npz", matrix=matrix)
with numpy.load("arrays.npz") as arrays:
    assert (arrays["matrix"] == matrix).all()
print(int(solution.sum().round()))
