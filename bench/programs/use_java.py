"""javac and java: two classes compiled; run with threads, a stream, a file."""

import os
import subprocess

PROGRAM = """
import java.nio.file.*;
import java.util.concurrent.*;
import java.util.stream.*;

public class Program {
    record Square(int side) { int area() { return side * side; } }

    public static void main(String[] arguments) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(4);
        Future<Integer> sum = pool.submit(
            () -> IntStream.range(0, 100).parallel().map(n -> new Square(n).area()).sum());
        Files.writeString(Path.of("sum"), String.valueOf(sum.get()));
        pool.shutdown();
        System.out.println(Files.readString(Path.of("sum")));
    }
}
"""
with open("Program.java", "w") as file:
    file.write(PROGRAM)
subprocess.run(["javac", "Program.java"], check=True)
assert os.path.exists("Program$Square.class")
subprocess.run(["java", "-cp", ".", "Program"], check=True)
