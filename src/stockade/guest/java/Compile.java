package stockade.tool;

import java.io.ByteArrayOutputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.Writer;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.zip.CRC32;
import java.util.zip.ZipEntry;
import java.util.zip.ZipOutputStream;
import javax.tools.Diagnostic;
import javax.tools.FileObject;
import javax.tools.ForwardingJavaFileManager;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileManager;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.StandardLocation;
import javax.tools.ToolProvider;

/**
 * Compiles one source from standard input and runs nothing of it: no annotation processor, no class
 * path, no plug-in. Its classes go to tool.jar, what is wrong with it to descriptor 3.
 */
final class Compile {
    private static final int LONGEST_SENTENCE = 300;
    /** javac goes down the source's tree by calling itself. */
    private static final long STACK_BYTES = 64L << 20;
    private static final List<String> OPTIONS = List.of(
        "-proc:none", "-implicit:none", "-encoding", "UTF-8", "-g:source,lines", "-Xlint:none",
        "-nowarn", "-Xmaxerrs", "100",
        // An empty path would be the folder that it stands in.
        "--class-path", "/nowhere", "--source-path", "/nowhere",
        // Else the first concatenation of a call costs it 20 ms.
        "-XDstringConcat=inline");

    private Compile() {}

    /** Arguments: bytes of source, bytes of all classes, classes, findings at the most. */
    public static void main(String[] arguments) throws Exception {
        int mostSource = Integer.parseInt(arguments[0]);
        Bounds bounds = new Bounds(Integer.parseInt(arguments[1]), Integer.parseInt(arguments[2]),
            Integer.parseInt(arguments[3]));
        OutputStream result = new FileOutputStream("/proc/self/fd/3");
        byte[] source = System.in.readNBytes(mostSource + 1);
        Findings findings = new Findings(bounds.findings);
        Thread thread = new Thread(null, () -> compile(source, mostSource, bounds, findings),
            "compile", STACK_BYTES);
        thread.start();
        thread.join();
        findings.send(result);
        System.exit(0);
    }

    private record Bounds(int bytes, int classes, int findings) {}

    /** Ends a compilation that has become too large. */
    private static final class TooMuch extends RuntimeException {
        private static final long serialVersionUID = 1L;

        TooMuch(String sentence) {
            super(sentence, null, false, false);
        }
    }

    private static void compile(byte[] source, int most, Bounds bounds, Findings findings) {
        if (source.length > most) {
            findings.add(1, 1, "size", "it has more than " + most + " bytes", "make it smaller");
            return;
        }
        try {
            compile(text(source, findings), bounds, findings);
        } catch (CharacterCodingException error) {
            findings.add(1, 1, "encoding", "it is no UTF-8", "save it as UTF-8");
        } catch (IOException error) {
            findings.add(1, 1, "checker", "its classes cannot be written: " + error.getMessage(), "");
        } catch (StackOverflowError error) {
            findings.add(1, 1, "nesting", "it is nested too deeply to be compiled",
                "break it into statements");
        } catch (OutOfMemoryError error) {
            findings.add(1, 1, "size", "compiling it takes more memory than there is",
                "make it smaller or simpler");
        } catch (RuntimeException | Error error) {
            Throwable reason = error;
            while (reason.getCause() != null && reason.getCause() != reason) {
                reason = reason.getCause();
            }
            if (reason instanceof TooMuch) {
                findings.add(1, 1, "size", reason.getMessage(), "make it smaller or simpler");
            } else if (reason instanceof StackOverflowError) {
                findings.add(1, 1, "nesting", "it is nested too deeply to be compiled",
                    "break it into statements");
            } else {
                findings.add(1, 1, "checker", "the compiler failed: " + reason.getClass().getName(),
                    "make it smaller or simpler");
            }
        }
    }

    private static String text(byte[] source, Findings findings) throws CharacterCodingException {
        String text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(source)).toString();
        int nul = text.indexOf('\0');
        if (nul >= 0) {
            findings.add(1, 1, "encoding", "it holds a NUL, at character " + (nul + 1), "");
        }
        return text;
    }

    private static void compile(String text, Bounds bounds, Findings findings) throws IOException {
        if (findings.any()) {
            return;
        }
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        try (Memory memory = new Memory(compiler.getStandardFileManager(null, Locale.ROOT,
            StandardCharsets.UTF_8), bounds)) {
            JavaFileObject unit = new SimpleJavaFileObject(URI.create("string:///Tool.java"),
                JavaFileObject.Kind.SOURCE) {
                @Override
                public CharSequence getCharContent(boolean ignoreEncodingErrors) {
                    return text;
                }
            };
            Said said = new Said();
            boolean whole = compiler.getTask(said, memory,
                diagnostic -> note(diagnostic, findings), OPTIONS, null, List.of(unit)).call();
            if (!whole && !findings.any()) {
                // javac catches what brings it down, and speaks of it to nobody in particular.
                if (said.contains("StackOverflowError")) {
                    throw new StackOverflowError();
                } else if (said.contains("OutOfMemoryError")) {
                    throw new OutOfMemoryError();
                }
                findings.add(1, 1, "checker", "the compiler failed and did not say why",
                    "make it smaller or simpler");
            }
            if (!findings.any()) {
                memory.write();
            }
        }
    }

    private static void note(Diagnostic<? extends JavaFileObject> diagnostic, Findings findings) {
        if (diagnostic.getKind() != Diagnostic.Kind.ERROR) {
            return;
        }
        String code = String.valueOf(diagnostic.getCode());
        String rule = code.contains("cant.resolve") || code.contains("doesnt.exist") ? "name"
            : code.contains("expected") || code.contains("illegal") || code.contains("premature")
            ? "syntax" : "compile";
        findings.add(diagnostic.getLineNumber(), diagnostic.getColumnNumber(), rule,
            diagnostic.getMessage(Locale.ENGLISH), "");
    }

    /** The beginning of what it says. */
    private static final class Said extends Writer {
        private static final int MOST = 10_000;
        private final StringBuilder said = new StringBuilder();

        boolean contains(String words) {
            return said.indexOf(words) >= 0;
        }

        @Override
        public void write(char[] text, int from, int length) {
            said.append(text, from, Math.min(length, MOST - said.length()));
        }

        @Override
        public void flush() {}

        @Override
        public void close() {}
    }

    /** Class files in memory. Of files there is only what the JDK itself brings. */
    private static final class Memory extends ForwardingJavaFileManager<JavaFileManager> {
        private final Bounds bounds;
        private final Map<String, ByteArrayOutputStream> classes = new TreeMap<>();

        Memory(JavaFileManager files, Bounds bounds) {
            super(files);
            this.bounds = bounds;
        }

        @Override
        public JavaFileObject getJavaFileForOutput(JavaFileManager.Location location, String name,
            JavaFileObject.Kind kind, FileObject sibling) {
            if (location != StandardLocation.CLASS_OUTPUT || kind != JavaFileObject.Kind.CLASS) {
                throw new TooMuch("it makes files that are no classes");
            }
            return new SimpleJavaFileObject(URI.create("bytes:///" + name.replace('.', '/') + ".class"),
                kind) {
                @Override
                public OutputStream openOutputStream() {
                    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
                    classes.put(name.replace('.', '/') + ".class", bytes);
                    bound();
                    return bytes;
                }
            };
        }

        private void bound() {
            long size = 0;
            for (ByteArrayOutputStream each : classes.values()) {
                size += each.size();
            }
            if (classes.size() > bounds.classes || size > bounds.bytes) {
                throw new TooMuch("it makes more than " + bounds.classes + " classes, or "
                    + bounds.bytes + " bytes of them");
            }
        }

        /** The same classes give the same bytes: nothing in the file is of its time. */
        void write() throws IOException {
            bound();
            try (ZipOutputStream jar = new ZipOutputStream(new FileOutputStream("tool.jar"))) {
                jar.setMethod(ZipOutputStream.STORED);
                for (Map.Entry<String, ByteArrayOutputStream> each : classes.entrySet()) {
                    byte[] content = each.getValue().toByteArray();
                    CRC32 sum = new CRC32();
                    sum.update(content);
                    ZipEntry entry = new ZipEntry(each.getKey());
                    entry.setTimeLocal(java.time.LocalDateTime.of(2000, 1, 1, 0, 0));
                    entry.setSize(content.length);
                    entry.setCrc(sum.getValue());
                    jar.putNextEntry(entry);
                    jar.write(content);
                }
            }
        }
    }

    /** What is wrong with it, as Stockade's checks of a source say it. */
    static final class Findings {
        private final int most;
        private final List<Object> all = new ArrayList<>();

        Findings(int most) {
            this.most = most;
        }

        boolean any() {
            return !all.isEmpty();
        }

        void add(long line, long column, String rule, String sentence, String suggestion) {
            if (all.size() >= most) {
                return;
            }
            Map<String, Object> finding = new LinkedHashMap<>();
            finding.put("line", Math.max(1, line));
            finding.put("column", Math.max(1, column));
            finding.put("rule", rule);
            finding.put("sentence", plain(sentence));
            finding.put("suggestion", plain(suggestion));
            all.add(finding);
        }

        /** One line, no character that a terminal would obey. */
        private static String plain(String text) {
            StringBuilder plain = new StringBuilder();
            boolean space = false;
            for (int i = 0; i < text.length() && plain.length() < LONGEST_SENTENCE; i++) {
                char c = text.charAt(i);
                if (Character.isWhitespace(c)) {
                    space = true;
                    continue;
                }
                if (space && plain.length() > 0) {
                    plain.append(' ');
                }
                space = false;
                plain.append(c < ' ' || c > '~' ? '?' : c);
            }
            return plain.toString();
        }

        void send(OutputStream result) throws IOException {
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("findings", all);
            result.write(new Json.Writer(1 << 20).value(answer).toString()
                .getBytes(StandardCharsets.UTF_8));
        }
    }
}
