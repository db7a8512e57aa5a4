import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.zip.CRC32;
import java.util.zip.ZipEntry;
import java.util.zip.ZipOutputStream;
import javax.tools.ToolProvider;

/** Compiles the harness beside it into harness.jar: once for an image, as `java Build.java`. */
public class Build {
    private static final String ASM = "jdk.internal.org.objectweb.asm";

    public static void main(String[] arguments) throws Exception {
        if (ToolProvider.getSystemJavaCompiler() == null
            || !Object.class.getModule().getPackages().contains(ASM)) {
            System.err.println("Java " + Runtime.version().feature()
                + " has no compiler, or does not bring ASM, which reads class files");
            System.exit(69);
        }
        List<String> words = new ArrayList<>(List.of("-proc:none", "-implicit:none", "-nowarn",
            "-Xlint:none", "-encoding", "UTF-8", "-g:none", "-d", "/tmp/classes",
            "--add-exports", "java.base/" + ASM + "=ALL-UNNAMED"));
        for (String name : new TreeSet<>(Set.of(new File(".").list()))) {
            if (name.endsWith(".java") && !name.equals("Build.java")) {
                words.add(name);
            }
        }
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        if (ToolProvider.getSystemJavaCompiler().run(null, said, said,
            words.toArray(new String[0])) != 0) {
            System.err.write(said.toByteArray());
            System.exit(70);
        }
        File jar = new File("harness.jar");
        try (OutputStream file = new FileOutputStream(jar);
            ZipOutputStream zip = new ZipOutputStream(file, StandardCharsets.UTF_8)) {
            zip.setMethod(ZipOutputStream.STORED);
            for (String name : new TreeSet<>(Set.of(new File("/tmp/classes/stockade/tool").list()))) {
                byte[] content = Files.readAllBytes(Path.of("/tmp/classes/stockade/tool", name));
                CRC32 sum = new CRC32();
                sum.update(content);
                ZipEntry entry = new ZipEntry("stockade/tool/" + name);
                entry.setTimeLocal(java.time.LocalDateTime.of(2000, 1, 1, 0, 0));
                entry.setSize(content.length);
                entry.setCrc(sum.getValue());
                zip.putNextEntry(entry);
                zip.write(content);
            }
        }
        // An archive of classes notes the time of the jar and refuses another. Zero it does not
        // compare, and every sandbox has the jar with a time of its own.
        if (!jar.setLastModified(0)) {
            System.exit(73);
        }
    }
}
