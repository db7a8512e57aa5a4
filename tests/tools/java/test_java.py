"""Tools in Java, in real sandboxes: what compiles, what is refused, what a call answers."""

import io
import json
import re
import shutil
import zipfile
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from stockade.executor.local import open_local
from stockade.port import (
    KIB,
    MIB,
    ExecutionEnvironment,
    Limits,
    Outcome,
    SandboxRequest,
    Stream,
    Tier,
)
from stockade.tools.java import (
    Compiled,
    Finding,
    JavaTools,
    ParkingPolicy,
    SourceRefused,
    calling,
    check_rules,
    compiling,
)
from stockade.tools.java.parking import Key, ParkedJvm

pytestmark = [pytest.mark.tier("namespace"), pytest.mark.asyncio(loop_scope="module")]

SANDBOX = SandboxRequest(tenant="one", tier=Tier.NAMESPACE)
# All that javac makes which is more than plain calls.
ALLOWED = """
import java.util.*;
import java.util.stream.*;

public class Tool {
    enum Color { RED, GREEN; Color other() { return this == RED ? GREEN : RED; } }
    record Point(int x, int y) { Point { if (x < 0) throw new IllegalArgumentException("x"); } }
    sealed interface Shape permits Circle, Square {}
    static final class Circle implements Shape { double r; }
    static final class Square implements Shape { double s; }
    interface Visitor<T> { T visit(Shape s); default T twice(Shape s) { visit(s); return visit(s); } }
    static class Problem extends Exception { Problem(String m, Throwable c) { super(m, c); } }
    static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
    public static Object main(Map<String, Object> input) throws Exception {
        var p = new Point(1, 2);
        Color c = Color.valueOf("RED");
        String s = "a" + p.x() + p.equals(null) + c.other();
        switch (c) { case RED: s += 1; break; default: s += 2; }
        s += switch (s) { case "x" -> "y"; default -> "z"; };
        Visitor<String> v = sh -> sh instanceof Circle k ? "c" + k.r : "s";
        s += v.twice(new Square());
        try (var r = new java.io.StringReader("abc")) { s += (char) r.read(); }
        catch (java.io.IOException e) { throw new Problem("m", e); }
        List<Integer> l = IntStream.range(0, 4).boxed().collect(Collectors.toList());
        l.sort(Comparator.comparing(Integer::doubleValue).reversed());
        int[][] grid = new int[2][2];
        int[] copy = grid[0].clone();
        Object o = new Object() { @Override public String toString() { return "o"; } };
        assert l.size() > 3 : "no";
        var md = java.security.MessageDigest.getInstance("SHA-256").digest(new byte[3]);
        var pool = java.util.concurrent.Executors.newFixedThreadPool(2);
        try { s += pool.submit(() -> fib(10)).get(); }
        catch (InterruptedException e) { Thread.currentThread().interrupt(); }
        EnumMap<Color, Integer> em = new EnumMap<>(Color.class);
        em.put(c, copy.length);
        System.out.println(String.format("%s %s", o, c.getClass().getSimpleName()));
        return Map.of("s", s, "l", l, "grid", grid, "map", em.toString(), "md", md.length,
            "day", java.time.LocalDate.of(2020, 1, 1).plusDays(3).toString());
    }
}
"""
# Each line that ends in a comment is refused, by that rule.
REFUSED = """
import java.util.*;
import java.util.function.*;
public class Tool {
  static native void n(); // native:
  static class T extends Thread { // member
    public void run() { getContextClassLoader(); } // class
  }
  static class L extends ClassLoader {} // class
  static class F extends java.util.concurrent.ForkJoinWorkerThread { // class:
    F() { super(null); } // class
  }
  static class S implements java.io.Serializable {
    private void readObject(java.io.ObjectInputStream in) {} // class:
  }
  static class O extends java.io.ByteArrayOutputStream { Object x() { return getClass().getModule(); } } // class
  public static Object main(Map<String, Object> input) throws Throwable {
    Runtime.getRuntime().exec("id"); // class
    new ProcessBuilder("id").start(); // class
    Class.forName("java.lang.Runtime"); // member
    Function<String, Object> f = x -> { try { return
      Class.forName(x); // member
    } catch (Exception e) { return null; } };
    IntConsumer c = System::exit; // member
    Supplier<Runtime> r = Runtime::getRuntime; // class
    Function<Object, Object> g = Object::getClass;
    BiFunction<Class<?>, String, Object> h = Class::getResource; // class
    java.lang.invoke.MethodHandles.lookup(); // class
    "".getClass().getMethod("length"); // class
    "".getClass().getClassLoader(); // class
    "".getClass().getDeclaredConstructor().newInstance(); // class
    System.exit(1); // member
    System.getenv("x"); // member
    System.getProperty("x"); // member
    System.setOut(null); // member
    System.in.read(); // member
    new java.io.File("/etc/passwd"); // class
    new java.io.FileInputStream("/etc/passwd"); // class
    new Scanner(java.nio.file.Path.of("/etc/passwd")); // class
    new java.util.Formatter("/tmp/x"); // class
    new java.io.PrintWriter("/tmp/x"); // member
    new java.io.PrintStream("/tmp/x"); // member
    new java.net.Socket("a", 1); // class
    new java.net.URL("http://x"); // class
    java.net.URI.create("http://x").toURL(); // class
    ServiceLoader.load(Runnable.class); // class
    ResourceBundle.getBundle("x"); // class
    Thread.currentThread().getThreadGroup(); // class
    Thread.currentThread().getContextClassLoader(); // class
    Thread.getAllStackTraces(); // member
    new Thread(() -> {}).start(); // member
    sun.misc.Unsafe.class.getName(); // class
    System.load("/tmp/x.so"); // member
    StackWalker.getInstance(); // class
    java.lang.reflect.Array.newInstance(int.class, 3); // class
    java.lang.reflect.Proxy.isProxyClass(int.class); // class
    java.security.MessageDigest.getInstance("x").getProvider(); // class
    java.security.AccessController.doPrivileged((java.security.PrivilegedAction<Object>) () -> 1); // class
    Integer.getInteger("java.specification.version"); // member
    java.util.concurrent.ForkJoinPool.commonPool().getFactory().newThread(null); // class
    java.util.concurrent.atomic.AtomicIntegerFieldUpdater.newUpdater(Tool.class, "x"); // class
    new java.io.ObjectInputStream(null).readObject(); // class
    new javax.script.ScriptEngineManager(); // class
    java.sql.DriverManager.getConnection("x"); // class
    Object o = Object[].class.getComponentType(); // member
    Runnable s = (Runnable & java.io.Serializable) () -> {};
    return java.lang.invoke.MethodType.methodType(int.class); // class
  }
}
"""
ANSWERS = """
import java.math.*;
import java.util.*;

public class Tool {
    static class Own { public String toString() { return "own"; } }
    static class Evil extends RuntimeException {
        public String getMessage() { throw new IllegalStateException("again"); }
    }
    static class Slow { static { while (true) { if (System.nanoTime() == 1) break; } } static int x; }
    static class Broken { static int x = 1 / Integer.parseInt("0"); }
    static int deep(int n) { return deep(n + 1) + 1; }
    public static Object main(Map<String, Object> input) {
        List<Object> list = new ArrayList<>();
        Map<String, Object> map = new HashMap<>();
        switch ((String) input.get("case")) {
            case "echo": return input;
            case "null": return null;
            case "types": return types(input.get("value"));
            case "nan": return Map.of("a/b", List.of(1, Double.NaN));
            case "bytes": map.put("x", new byte[3]); return map;
            case "cycle": list.add(Map.of("up", list)); return list;
            case "own": return List.of(new Own());
            case "key": return Map.of(1, 2);
            case "half": return "\\ud800";
            case "digits": return BigInteger.TEN.pow(10_000);
            case "scale": return new BigDecimal("1e100000");
            case "levels": for (int i = 0; i < 200; i++) { list = new ArrayList<>(List.of(list)); } return list;
            case "large": return "x".repeat(2_000_000);
            case "wide": return "\\u20ac".repeat(400_000);
            case "heap": for (;;) { list.add(new long[1 << 20]); }
            case "deep": return deep(0);
            case "throw":
                throw new IllegalArgumentException("the price is negative",
                    new RuntimeException("cause"));
            case "evil": throw new Evil();
            case "slow": return Slow.x;
            case "broken": return Broken.x;
            case "loop": System.out.println("began"); for (;;) { if (System.nanoTime() == 1) break; } return 1;
            case "print": System.out.print("{\\"output\\":1}"); System.err.print("err"); return 2;
            case "thread": java.util.concurrent.Executors.newFixedThreadPool(1).submit(() -> {
                for (;;) { } }); return 3;
            default: return types(input);
        }
    }
    static Object types(Object value) {
        if (value instanceof List) {
            List<Object> names = new ArrayList<>();
            for (Object each : (List<?>) value) { names.add(types(each)); }
            return names;
        }
        return value == null ? "null" : value.getClass().getSimpleName();
    }
}
"""


@pytest.fixture(scope="module", autouse=True)
def jdk() -> None:
    # The image of the namespace tier is the host's /usr.
    if shutil.which("javac", path="/usr/bin") is None:
        pytest.skip(
            "tier namespace: its image has no JDK (apt-get install openjdk-17-jdk-headless)"
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def environment() -> AsyncIterator[ExecutionEnvironment]:
    async with open_local(tiers={Tier.NAMESPACE}) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def java(environment: ExecutionEnvironment) -> AsyncIterator[JavaTools]:
    # Each call starts its own JVM, but where a test says otherwise.
    async with JavaTools(environment, ParkingPolicy(most=0)) as tools:
        yield tools


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parking(environment: ExecutionEnvironment, java: JavaTools) -> AsyncIterator[JavaTools]:
    async with JavaTools(environment, ParkingPolicy(most=1), java.store) as tools:
        yield tools


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def answers(java: JavaTools) -> Compiled:
    return await java.compile(ANSWERS, None, SANDBOX)


async def called(java: JavaTools, tool: Compiled, case: str, **more: Any) -> Any:
    """The answer of one call: an output, or a failure."""
    call = await java.call(tool, json.dumps({"case": case, **more}).encode(), SANDBOX)
    return call.failure if call.output is None else json.loads(call.output)


# --- the source ---------------------------------------------------------------------------------


async def test_what_tools_are_made_of_is_allowed(java: JavaTools) -> None:
    tool = await java.compile(ALLOWED, None, SANDBOX)
    call = await java.call(tool, b"{}", SANDBOX)
    assert call.output is not None, call.failure
    assert json.loads(call.output) == {
        "s": "a1falseGREEN1zsa55",
        "l": [3, 2, 1, 0],
        "grid": [[0, 0], [0, 0]],
        "map": "{RED=2}",
        "md": 32,
        "day": "2020-01-04",
    }
    assert call.execution.stdout.content == b"o Color\n"


async def test_whatever_the_rules_do_not_name_is_refused(java: JavaTools) -> None:
    """Each line by its rule, whether it is called, taken as a method or inherited."""
    # A comment with a colon is on a line of which no class file tells the number.
    promised = {
        (number, rule)
        for number, line in enumerate(REFUSED.split("\n"), 1)
        for rule in re.findall(r"// (\w+)$", line)
    }
    lineless = re.findall(r"// (\w+):$", REFUSED, re.MULTILINE)
    with pytest.raises(SourceRefused) as refused:
        await java.compile(REFUSED, None, SANDBOX)
    findings = refused.value.findings
    found = {(finding.line, finding.rule) for finding in findings}
    assert promised - found == set()
    assert [rule for rule in lineless if not any(f.rule == rule for f in findings)] == []
    sentences = " ".join(finding.sentence for finding in findings)
    # A lambda that can be sent as bytes, a method that reads an object from them.
    for name in ("SerializedLambda", "ObjectInputStream", "ForkJoinWorkerThread", "native"):
        assert name in sentences
    process = next(each for each in findings if each.sentence.startswith("java.lang.Process is"))
    assert process.suggestion.endswith('"classes": ["java.lang.Process"]')


async def test_a_source_that_does_not_compile_is_told_by_line_and_column(java: JavaTools) -> None:
    with pytest.raises(SourceRefused) as refused:
        await java.compile('public class Tool {\n    int x = "é";\n    y z;\n}\n', None, SANDBOX)
    first, second = refused.value.findings
    assert (first.line, first.column, first.rule) == (2, 13, "compile")
    assert first.sentence == "incompatible types: java.lang.String cannot be converted to int"
    assert (second.line, second.column, second.rule) == (3, 5, "name")


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        pytest.param(b"class Tool { String s = \"\xff\"; }", "encoding", id="no UTF-8"),
        pytest.param(b"class Tool { }\0", "encoding", id="NUL"),
        pytest.param("class Tool { int x = " + "(" * 500_000 + "1", "nesting", id="deep"),
        pytest.param("public class Tool { }", "function", id="no main"),
        pytest.param("class Tool { public static Object main(java.util.Map<String,Object> m) { return 1; } }", "function", id="not public"),
        pytest.param("package java.lang; public class Tool { }", "compile", id="the JDK's package"),
        pytest.param("package stockade.tool; public class Tool { }", "malformed", id="our package"),
        pytest.param("public class Tool { @Override int x() { return 1; } }", "compile", id="annotation"),
    ],
)  # fmt: skip
async def test_a_source_that_is_none(java: JavaTools, source: str | bytes, rule: str) -> None:
    with pytest.raises(SourceRefused) as refused:
        await java.compile(source, None, SANDBOX)
    assert refused.value.findings[0].rule == rule, refused.value.findings


async def test_a_source_that_is_too_large_needs_no_sandbox(java: JavaTools) -> None:
    with pytest.raises(SourceRefused, match="at most 1048576"):
        await java.compile(b"x" * 10_000_000, None, SANDBOX)


async def test_rules_are_a_tenants_own(java: JavaTools) -> None:
    source = """public class Tool { public static Object main(java.util.Map<String, Object> input)
    throws Exception { Thread t = new Thread(() -> {}); t.start(); t.join();
    return java.nio.file.Files.exists(java.nio.file.Path.of("/workspace")); } }"""
    rules = {
        "classes": ["java.nio.file.Files", "java.nio.file.Path", "java.nio.file.LinkOption"],
        "members": {"java.lang.Thread": ["<init>(Ljava/lang/Runnable;)V", "start", "join"]},
    }
    tool = await java.compile(source, rules, SANDBOX)
    assert (await java.call(tool, b"{}", SANDBOX)).output == b"true"
    with pytest.raises(SourceRefused, match=r"java\.nio\.file\.Files"):
        await java.compile(source, {**rules, "refused": ["java.nio.file.Files.exists"]}, SANDBOX)


# --- class files --------------------------------------------------------------------------------


def jar(*classes: tuple[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in classes:
            archive.writestr(name, data)
    return content.getvalue()


def renamed(data: bytes, old: bytes, new: bytes) -> bytes:
    """A constant of a class file made another."""
    before, after = (len(name).to_bytes(2, "big") + name for name in (old, new))
    assert before in data
    return data.replace(before, after)


async def refusal(
    java: JavaTools, environment: ExecutionEnvironment, content: bytes
) -> list[Finding]:
    made = await java._toolchain(SANDBOX)
    with pytest.raises(SourceRefused) as refused:
        await compiling.verify(environment, made, content, check_rules(None), SANDBOX)
    return refused.value.findings


async def test_a_class_file_that_is_malformed_or_forged_is_refused(
    java: JavaTools, environment: ExecutionEnvironment
) -> None:
    """The verifier judges what comes to it, whoever made it."""
    source = """public class Tool { public static Object main(java.util.Map<String, Object> input) {
    Runnable r = () -> System.nanoTime(); r.run(); return Math.abs(1); } }"""
    made = await java.compile(source, None, SANDBOX)
    tool = zipfile.ZipFile(io.BytesIO(made.jar)).read("Tool.class")
    for content, rule, words in [
        (b"", "malformed", "the jar cannot be read"),
        (b"PK\3\4" + b"x" * 100, "malformed", "the jar cannot be read"),
        (jar(("Tool.class", b"")), "malformed", "cannot be read"),
        (jar(("Tool.class", tool[: len(tool) // 2])), "malformed", "cannot be read"),
        (jar(("Other.class", tool)), "malformed", "holds another class"),
        (jar(("a/Tool.class", tool)), "malformed", "more than classes without a package"),
        (
            jar(("Tool.class", tool), ("META-INF/MANIFEST.MF", b"Class-Path: x")),
            "malformed",
            "more than classes",
        ),
        # Not of this JVM's version; the magic number is that of ELF.
        (jar(("Tool.class", tool[:6] + b"\xff\xff" + tool[8:])), "malformed", "cannot be linked"),
        (jar(("Tool.class", b"\x7fELF" + tool[4:])), "malformed", "cannot be linked"),
        # What javac would never write.
        (
            jar(("Tool.class", renamed(tool, b"metafactory", b"metafactorx"))),
            "bootstrap",
            "invokedynamic by",
        ),
        (jar(("Tool.class", renamed(tool, b"nanoTime", b"exit"))), "member", "System.exit"),
        (jar(("Tool.class", renamed(tool, b"()J", b"()V"))), "malformed", "cannot be linked"),
        (
            jar(("Tool.class", renamed(tool, b"java/lang/Math", b"java/lang/Runtime"))),
            "class",
            "java.lang.Runtime",
        ),
        # A constant that nothing refers to is one that the JVM could resolve.
        (jar(("Tool.class", with_constant(tool, b"java/lang/Runtime"))), "class", "Runtime"),
    ]:
        found = await refusal(java, environment, content)
        assert any(each.rule == rule and words in each.sentence for each in found), found


def with_constant(data: bytes, name: bytes) -> bytes:
    """A class file with two more constants, at the end of its pool: a class and its name."""
    count = int.from_bytes(data[8:10], "big")
    end, index = 10, 1
    sizes = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4}  # fmt: skip
    while index < count:
        tag = data[end]
        index += 2 if tag in (5, 6) else 1
        end += 3 + int.from_bytes(data[end + 1 : end + 3], "big") if tag == 1 else 1 + sizes[tag]
    more = b"\1" + len(name).to_bytes(2, "big") + name + b"\7" + count.to_bytes(2, "big")
    return data[:8] + (count + 2).to_bytes(2, "big") + data[10:end] + more + data[end:]


async def test_checking_a_tool_runs_nothing_of_it(parking: JavaTools) -> None:
    """A static initialiser that does not end keeps nobody from compiling and parking it."""
    source = """public class Tool { static { while (System.nanoTime() != 1) { } }
    public static Object main(java.util.Map<String, Object> input) { return 1; } }"""
    tool = await parking.compile(source, None, SANDBOX)
    hurried = SandboxRequest(tenant="one", tier=Tier.NAMESPACE, limits=Limits(wall_seconds=3.0))
    await parking.park(tool, hurried)
    call = await parking.call(tool, b"{}", hurried)
    assert call.parked
    assert call.execution.outcome is Outcome.WALL_CLOCK
    assert call.execution.limit is not None
    assert (call.execution.limit.name, call.execution.limit.ceiling) == ("wall_seconds", 3.0)
    assert call.failure is not None
    assert call.failure.kind == "outcome"


# --- a call -------------------------------------------------------------------------------------


async def test_numbers_and_texts_survive(java: JavaTools, answers: Compiled) -> None:
    values: list[object] = [
        0, -1, 2**63 - 1, -(2**63), 2**63, 10**99, 1.5, -0.1, 1e-7, True, False, None, "", "é€😀\0\n\"\\/",
        [], {}, {"": [{}]},
    ]  # fmt: skip
    assert await called(java, answers, "echo", value=values) == {"case": "echo", "value": values}
    text = b'{"case": "types", "value": [1, 9223372036854775808, 1.0, 0.1, 1e2, 1e999, 0.12345678901234567890, "a", true, null]}'
    call = await java.call(answers, text, SANDBOX)
    assert json.loads(call.output or b"") == [
        "Long", "BigInteger", "Double", "Double", "Double", "BigDecimal", "BigDecimal", "String",
        "Boolean", "null",
    ]  # fmt: skip
    exact = b'{"case": "echo", "value": 0.12345678901234567890}'
    assert (await java.call(answers, exact, SANDBOX)).output == exact.replace(b" ", b"")
    assert await called(java, answers, "null") is None


@pytest.mark.parametrize(
    ("case", "place", "words"),
    [
        ("nan", "/a~1b/1", "NaN is no JSON"),
        ("bytes", "/x", "java.util.Base64"),
        ("cycle", "/0/up", "contains itself"),
        ("own", "/0", "Tool$Own is no JSON"),
        ("key", "", "a key is a java.lang.Integer"),
        ("half", "", "half a surrogate pair"),
        ("digits", "", "100 digits"),
        ("scale", "", "beyond those"),
        ("levels", "/0" * 60, "deeper than 60 levels"),
        ("large", "", "more than 1048576"),
        ("wide", "", "more than 1048576 bytes"),
    ],
)
async def test_an_output_that_is_no_json_is_told_by_its_place(
    java: JavaTools, answers: Compiled, case: str, place: str, words: str
) -> None:
    failure = await called(java, answers, case)
    kind = "too_large" if case in ("large", "wide") else "not_json"
    assert (failure.kind, failure.place) == (kind, place)
    assert words in failure.message


BAD_INPUTS = [
    b"", b"[1]", b"{", b'{"a": 1} 2', b'{"a": 1, "a": 2}', b'{"a": NaN}', b'{"a": 01}',
    b"{'a': 1}", b'{"a": 1,}', b'{"a": "\\ud800"}', b'{"a": "\x01"}', b'{"a": 1e9999999}',
    b'{"a": "\xff"}', b'{"a": +1}', b'{"a": .5}', b'{"a":' + b"[" * 61 + b"]" * 61 + b"}",
    b'{"a":' + b"1" * 200 + b"}", b'\xef\xbb\xbf{"a": 1}',
]  # fmt: skip


async def test_an_input_that_is_no_json(java: JavaTools, answers: Compiled) -> None:
    for content in BAD_INPUTS:
        call = await java.call(answers, content, SANDBOX)
        assert call.failure is not None, content
        assert call.failure.kind == "bad_input", content


async def test_an_exception_is_told_by_class_message_and_line(
    java: JavaTools, answers: Compiled
) -> None:
    failure = await called(java, answers, "throw")
    line = ANSWERS.split("\n").index(
        '                throw new IllegalArgumentException("the price is negative",'
    )
    assert failure.kind == "raised"
    assert failure.message == "java.lang.IllegalArgumentException: the price is negative"
    assert failure.exception == "java.lang.IllegalArgumentException"
    assert failure.line == line + 1
    assert failure.trace == (f"Tool.main, line {line + 1}",)
    assert failure.causes == ("java.lang.RuntimeException: cause",)
    failure = await called(java, answers, "broken")
    assert failure.exception == "java.lang.ArithmeticException"
    assert "Tool$Evil" in (await called(java, answers, "evil")).message
    assert "StackOverflowError" in (await called(java, answers, "deep")).message
    assert "OutOfMemoryError" in (await called(java, answers, "heap")).message


async def test_what_a_tool_prints_is_no_answer(
    java: JavaTools, parking: JavaTools, answers: Compiled
) -> None:
    await parking.park(answers, SANDBOX)
    for tools in (java, parking):
        heard: list[tuple[Stream, bytes]] = []

        async def listen(stream: Stream, data: bytes) -> None:
            heard.append((stream, data))  # noqa: B023

        call = await tools.call(answers, b'{"case": "print"}', SANDBOX, on_output=listen)
        assert (call.parked, call.output) == (tools is parking, b"2")
        assert call.execution.stdout.content == b'{"output":1}'
        assert call.execution.stderr.content == b"err"
        assert b"".join(d for s, d in heard if s is Stream.STDOUT) == b'{"output":1}'


async def test_a_jvm_serves_one_call(parking: JavaTools, answers: Compiled) -> None:
    """What one call leaves behind is not there for the next."""
    source = """public class Tool { static int calls;
    public static Object main(java.util.Map<String, Object> input) { return ++calls; } }"""
    tool = await parking.compile(source, None, SANDBOX)
    for _ in range(2):
        await parking.park(tool, SANDBOX)
        call = await parking.call(tool, b"{}", SANDBOX)
        assert (call.parked, call.output) == (True, b"1")


async def test_a_thread_that_goes_on_holds_nobody_up(java: JavaTools, answers: Compiled) -> None:
    assert await called(java, answers, "thread") == 3


async def test_a_tool_that_does_not_end_hits_its_limit(java: JavaTools, answers: Compiled) -> None:
    hurried = SandboxRequest(tenant="one", tier=Tier.NAMESPACE, limits=Limits(wall_seconds=2.0))
    call = await java.call(answers, b'{"case": "slow"}', hurried)
    assert call.execution.outcome is Outcome.WALL_CLOCK
    busy = SandboxRequest(tenant="one", tier=Tier.NAMESPACE, limits=Limits(cpu_seconds=1.0))
    call = await java.call(answers, b'{"case": "loop"}', busy)
    assert call.execution.outcome is Outcome.CPU_TIME
    assert call.failure is not None
    assert call.failure.kind == "outcome"


async def test_a_small_sandbox_has_a_jvm_all_the_same(java: JavaTools, answers: Compiled) -> None:
    small = Limits(
        memory_bytes=160 * MIB, processes=24, disk_bytes=4 * MIB, inodes=64, result_bytes=4 * KIB
    )
    sandbox = SandboxRequest(tenant="one", tier=Tier.NAMESPACE, limits=small)
    call = await java.call(answers, b'{"case": "null"}', sandbox)
    assert call.output == b"null"
    call = await java.call(answers, b'{"case": "large"}', sandbox)
    assert call.failure is not None
    assert "more than 4096" in call.failure.message


@pytest.mark.tier("gvisor")
async def test_a_kernel_of_its_own_runs_it_too(java: JavaTools, answers: Compiled) -> None:
    """The same request, in gVisor, whose image is the same: cold, and in a JVM that waits."""
    made = await java._toolchain(SANDBOX)
    sandbox = SandboxRequest(tenant="one", tier=Tier.GVISOR)
    content = b'{"case": "types", "value": 1}'
    async with open_local(tiers={Tier.GVISOR}) as environment:
        request = calling.request(made, answers, sandbox.limits, waits=False)
        execution = await environment.run(request, sandbox, stdin=content)
        assert execution.result == b'{"output":"Long"}', execution
        jvm = ParkedJvm(Key(sandbox, answers.digest))
        try:
            request = calling.request(made, answers, sandbox.limits, waits=True)
            await jvm.start(environment, request, 60.0)
            assert (await jvm.call(content, None, None)).result == b'{"output":"Long"}'
        finally:
            await jvm.close()
