"""gcc: a library and a program with threads, compiled, linked and run."""

import subprocess

LIBRARY = "double half(double x) { return x / 2; }\n"
PROGRAM = r"""
#include <math.h>
#include <pthread.h>
#include <stdio.h>
double half(double);
static void *work(void *number) { *(double *)number = half(sqrt(*(double *)number)); return 0; }
int main(void)
{
    pthread_t threads[4];
    double numbers[4] = {4, 16, 36, 64}, sum = 0;
    for (int i = 0; i < 4; i++)
        if (pthread_create(&threads[i], 0, work, &numbers[i]))
            return 1;
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], 0);
        sum += numbers[i];
    }
    printf("%g\n", sum);
    return 0;
}
"""
with open("half.c", "w") as file:
    file.write(LIBRARY)
with open("program.c", "w") as file:
    file.write(PROGRAM)
for command in (
    "gcc -O2 -fPIC -shared -o libhalf.so half.c",
    "gcc -O2 -Wall -Werror -o program program.c -L. -lhalf -lm -pthread -Wl,-rpath,.",
):
    subprocess.run(command.split(), check=True)
print(subprocess.run(["./program"], check=True, capture_output=True, text=True).stdout, end="")
