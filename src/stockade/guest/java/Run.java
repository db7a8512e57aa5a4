package stockade.tool;

import java.io.FileInputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/**
 * Reads one input on standard input, calls the tool, writes one answer on descriptor 3, and ends.
 *
 * <p>The answer is {"output": …} or {"error": {"kind": …, "message": …, "place": …, …}}. Nothing of the tool
 * runs before the input is there, its static initialisers neither.
 */
final class Run {
    private static final int LONGEST_MESSAGE = 2_000;
    private static final int MOST_FRAMES = 20;
    private static final int MOST_CAUSES = 4;

    private Run() {}

    /** Arguments: bytes of input and of output at the most; "wait" where it is to say "." when ready. */
    public static void main(String[] arguments) throws IOException {
        int mostInput = Integer.parseInt(arguments[0]);
        int mostOutput = Integer.parseInt(arguments[1]);
        OutputStream result = new FileOutputStream("/proc/self/fd/3");
        Method tool = null;
        String missing = null;
        try {
            // Looking for its methods links the class, which verifies it, and initialises nothing.
            tool = Class.forName("Tool", false, Run.class.getClassLoader())
                .getMethod("main", Map.class);
        } catch (ReflectiveOperationException | LinkageError error) {
            missing = "the classes cannot be loaded: " + error;
        }
        if (arguments.length > 2 && arguments[2].equals("wait")) {
            Sample.rehearse();
            System.out.write('.');
            System.out.flush();
        }
        byte[] input = new byte[Math.min(mostInput, 1 << 16)];
        int length = 0;
        InputStream stdin = new FileInputStream(FileDescriptor.in);
        for (int read; (read = stdin.read(input, length, input.length - length)) >= 0; ) {
            length += read;
            if (length == input.length) {
                if (length >= mostInput) {
                    break;
                }
                input = Arrays.copyOf(input, Math.min(mostInput, input.length * 2));
            }
        }
        System.setIn(InputStream.nullInputStream());
        String answer;
        if (missing != null) {
            answer = failure("no_main", missing, null, null);
        } else if (length >= mostInput) {
            answer = failure("bad_input", "it has more than " + (mostInput - 1) + " bytes", "", null);
        } else {
            answer = call(tool, input, length, mostOutput);
        }
        System.out.flush();
        System.err.flush();
        byte[] bytes = answer.getBytes(StandardCharsets.UTF_8);
        if (bytes.length > mostOutput) {
            bytes = failure("too_large", "the output has more than " + mostOutput + " bytes", "", null)
                .getBytes(StandardCharsets.UTF_8);
        }
        result.write(bytes);
        // Not exit: what hooks and threads a tool may have left is not waited for.
        if (Boolean.getBoolean("stockade.train")) {
            System.exit(0);
        }
        Runtime.getRuntime().halt(answer.startsWith("{\"output\"") ? 0 : 1);
    }

    static String call(Method tool, byte[] input, int length, int most) {
        Object value;
        try {
            value = Json.read(input, length);
        } catch (Json.Refused refused) {
            return failure("bad_input", refused.getMessage(), refused.place, null);
        }
        if (!(value instanceof Map)) {
            return failure("bad_input", "it is no object", "", null);
        }
        try {
            Object output = tool.invoke(null, value);
            return new Json.Writer(most).raw("{\"output\":").value(output).raw("}").toString();
        } catch (Json.TooLarge refused) {
            return failure("too_large", refused.getMessage(), refused.place, null);
        } catch (Json.Refused refused) {
            return failure("not_json", refused.getMessage(), refused.place, null);
        } catch (InvocationTargetException error) {
            return raised(error.getCause());
        } catch (OutOfMemoryError | StackOverflowError error) {
            return raised(error);
        } catch (Throwable error) {
            // The tool's own maps and lists are code of its, too.
            return raised(error);
        }
    }

    private static String raised(Throwable error) {
        if (error instanceof ExceptionInInitializerError && error.getCause() != null) {
            error = error.getCause();
        }
        try {
            return failure("raised", said(error), null, error);
        } catch (Throwable another) {
            return failure("raised", "an exception of class " + cut(error.getClass().getName())
                + ", which cannot be told", null, null);
        }
    }

    private static String said(Throwable error) {
        String name = cut(error.getClass().getName());
        String message = error.getMessage();
        return message == null ? name : name + ": " + cut(message);
    }

    private static String cut(String text) {
        if (text.length() > LONGEST_MESSAGE) {
            text = text.substring(0, LONGEST_MESSAGE) + "...";
        }
        // Half a pair would not be UTF-8.
        return new String(text.getBytes(StandardCharsets.UTF_8), StandardCharsets.UTF_8);
    }

    private static String failure(String kind, String message, String place, Throwable error) {
        Map<String, Object> failure = new LinkedHashMap<>();
        failure.put("kind", kind);
        failure.put("message", cut(message));
        failure.put("place", place == null ? null : cut(place));
        failure.put("class", error == null ? null : cut(error.getClass().getName()));
        Integer line = null;
        List<Object> trace = new ArrayList<>();
        List<Object> causes = new ArrayList<>();
        if (error != null) {
            for (StackTraceElement frame : error.getStackTrace()) {
                String owner = frame.getClassName();
                if (owner.startsWith("stockade.tool.") || owner.contains(".reflect.")
                    || trace.size() >= MOST_FRAMES) {
                    break;
                }
                boolean own = "Tool.java".equals(frame.getFileName());
                if (own && line == null && frame.getLineNumber() > 0) {
                    line = frame.getLineNumber();
                }
                trace.add(cut(owner + "." + frame.getMethodName() + ", line " + frame.getLineNumber()));
            }
            Throwable cause = error.getCause();
            for (int i = 0; cause != null && i < MOST_CAUSES; i++, cause = cause.getCause()) {
                causes.add(said(cause));
            }
        }
        failure.put("line", line);
        failure.put("trace", trace);
        failure.put("causes", causes);
        return new Json.Writer(1 << 18).raw("{\"error\":").value(failure).raw("}").toString();
    }
}
