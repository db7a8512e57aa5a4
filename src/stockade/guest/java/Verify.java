package stockade.tool;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.URLClassLoader;
import java.net.URL;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.zip.ZipEntry;
import java.util.zip.ZipFile;
import jdk.internal.org.objectweb.asm.Attribute;
import jdk.internal.org.objectweb.asm.ClassReader;
import jdk.internal.org.objectweb.asm.ClassVisitor;
import jdk.internal.org.objectweb.asm.ConstantDynamic;
import jdk.internal.org.objectweb.asm.FieldVisitor;
import jdk.internal.org.objectweb.asm.Handle;
import jdk.internal.org.objectweb.asm.Label;
import jdk.internal.org.objectweb.asm.MethodVisitor;
import jdk.internal.org.objectweb.asm.ModuleVisitor;
import jdk.internal.org.objectweb.asm.Opcodes;
import jdk.internal.org.objectweb.asm.Type;

/**
 * Judges every class of tool.jar by a policy from standard input, and runs none. Defence in depth
 * and no boundary. The class files are read by ASM, which the JDK brings for its own use, and then
 * linked by the JVM itself.
 */
final class Verify {
    private static final int API = Opcodes.ASM8;
    // Tags of the constant pool, JVMS 4.4.
    private static final int CLASS = 7;
    private static final int FIELD = 9;
    private static final int METHOD = 10;
    private static final int INTERFACE_METHOD = 11;
    private static final int NAME_AND_TYPE = 12;
    private static final int METHOD_TYPE = 16;
    private static final int DYNAMIC = 17;
    private static final int MODULE = 19;
    private static final int PACKAGE = 20;

    private final Compile.Findings findings;
    private final Map<String, ClassReader> classes = new TreeMap<>();
    private final Map<String, Rules.Own> own = new HashMap<>();
    private Rules rules;

    private Verify(Compile.Findings findings) {
        this.findings = findings;
    }

    /** Arguments: bytes of all classes, classes, findings at the most. */
    public static void main(String[] arguments) throws IOException {
        OutputStream result = new FileOutputStream("/proc/self/fd/3");
        byte[] policy = System.in.readAllBytes();
        Compile.Findings findings = new Compile.Findings(Integer.parseInt(arguments[2]));
        Verify verify = new Verify(findings);
        File jar = new File("tool.jar");
        try {
            verify.read(jar, Integer.parseInt(arguments[0]), Integer.parseInt(arguments[1]));
            verify.rules = new Rules((Map<?, ?>) Json.read(policy, policy.length), verify.own);
            verify.judge();
            if (!findings.any()) {
                verify.link(jar);
            }
        } catch (Malformed error) {
            findings.add(1, 1, "malformed", error.getMessage(), "");
        }
        findings.send(result);
        System.exit(0);
    }

    private static final class Malformed extends Exception {
        private static final long serialVersionUID = 1L;

        Malformed(String sentence) {
            super(sentence);
        }
    }

    /** As a class loader reads it: by its table of contents. */
    private void read(File jar, int mostBytes, int mostClasses) throws Malformed {
        try (ZipFile zip = new ZipFile(jar)) {
            int left = mostBytes;
            Enumeration<? extends ZipEntry> entries = zip.entries();
            while (entries.hasMoreElements()) {
                ZipEntry entry = entries.nextElement();
                String name = entry.getName();
                if (!name.endsWith(".class") || name.indexOf('/') >= 0) {
                    throw new Malformed("the jar holds more than classes without a package: " + name);
                }
                byte[] content = zip.getInputStream(entry).readNBytes(left + 1);
                left -= content.length;
                if (left < 0 || classes.size() >= mostClasses) {
                    throw new Malformed("more than " + mostClasses + " classes, or " + mostBytes
                        + " bytes of them");
                }
                String internal = name.substring(0, name.length() - ".class".length());
                if (classes.put(internal, reader(internal, content)) != null) {
                    throw new Malformed("the jar holds a class twice: " + internal);
                }
            }
        } catch (IOException | RuntimeException error) {
            throw new Malformed("the jar cannot be read: " + error);
        }
        for (String name : classes.keySet()) {
            own.put(name, new Rules.Own());
        }
    }

    private static ClassReader reader(String name, byte[] content) throws Malformed {
        try {
            ClassReader reader = new ClassReader(content);
            if (!reader.getClassName().equals(name)) {
                throw new Malformed("the class file " + name + " holds another class");
            }
            return reader;
        } catch (RuntimeException error) {
            throw new Malformed("the class file " + name + " cannot be read: " + error);
        }
    }

    private void judge() throws Malformed {
        for (boolean declare : new boolean[] {true, false}) {
            for (Map.Entry<String, ClassReader> each : classes.entrySet()) {
                try {
                    if (declare) {
                        each.getValue().accept(new Declared(own.get(each.getKey())),
                            ClassReader.SKIP_CODE);
                    } else {
                        Judged judged = new Judged();
                        each.getValue().accept(judged, 0);
                        pool(each.getValue(), judged);
                    }
                } catch (RuntimeException | StackOverflowError error) {
                    throw new Malformed("the class file " + each.getKey() + " cannot be read: " + error);
                }
            }
        }
        Rules.Own tool = own.get("Tool");
        if (tool == null || !entered) {
            findings.add(1, 1, "function", "there is no class Tool with public static Object main(Map)",
                "public class Tool { public static Object main(java.util.Map<String, Object> input) }");
        }
    }

    private boolean entered;

    /** Reads sealed classes too, whose method ASM has given two names. */
    private abstract static class Visitor extends ClassVisitor {
        Visitor() {
            super(API);
        }

        public void visitPermittedSubclass(String permitted) {}

        public void visitPermittedSubclassExperimental(String permitted) {}
    }

    /** What the tool's own classes have, which their references are looked up in. */
    private static final class Declared extends Visitor {
        private final Rules.Own own;

        Declared(Rules.Own own) {
            this.own = own;
        }

        @Override
        public void visit(int version, int access, String name, String signature, String parent,
            String[] interfaces) {
            if (parent != null) {
                own.parents.add(parent);
            }
            own.parents.addAll(List.of(interfaces));
        }

        @Override
        public FieldVisitor visitField(int access, String name, String descriptor, String signature,
            Object value) {
            own.members.add(name + descriptor);
            return null;
        }

        @Override
        public MethodVisitor visitMethod(int access, String name, String descriptor, String signature,
            String[] exceptions) {
            own.members.add(name + descriptor);
            return null;
        }
    }

    /** One class: what its code refers to, by line. */
    private final class Judged extends Visitor {
        private final Set<String> told = new HashSet<>();
        private String name = "";
        private boolean publicly;
        private int line;

        private void tell(String rule, String sentence, String suggestion) {
            findings.add(line, 1, rule, sentence + ", in class " + name, suggestion);
        }

        private void tell(Rules.Problem problem) {
            // Without a line it says nothing new.
            if (problem != null && (line > 0 || !told.contains(problem.sentence))
                && told.add(line + problem.sentence)) {
                told.add(problem.sentence);
                tell(problem.rule, problem.sentence, problem.suggestion);
            }
        }

        private void type(String internal) {
            tell(rules.type(internal));
        }

        private void descriptor(String descriptor) {
            tell(rules.descriptor(descriptor));
        }

        private void member(String owner, String member, String descriptor) {
            tell(rules.member(owner, member, descriptor));
        }

        @Override
        public void visit(int version, int access, String name, String signature, String parent,
            String[] interfaces) {
            this.name = name;
            publicly = (access & Opcodes.ACC_PUBLIC) != 0;
            if ((access & Opcodes.ACC_MODULE) != 0 || parent == null) {
                tell("malformed", "it is a module, or has no parent", "");
            } else {
                type(parent);
            }
            for (String each : interfaces) {
                type(each);
            }
        }

        @Override
        public ModuleVisitor visitModule(String name, int access, String version) {
            tell("malformed", "it is a module", "");
            return null;
        }

        @Override
        public void visitAttribute(Attribute attribute) {
            tell("malformed", "an attribute that there is not: " + attribute.type, "");
        }

        @Override
        public FieldVisitor visitField(int access, String name, String descriptor, String signature,
            Object value) {
            descriptor(descriptor);
            return null;
        }

        @Override
        public MethodVisitor visitMethod(int access, String method, String descriptor,
            String signature, String[] exceptions) {
            if ((access & Opcodes.ACC_NATIVE) != 0) {
                tell("native", "the method " + method + " is native", "write it in Java");
            }
            descriptor(descriptor);
            int open = Opcodes.ACC_PUBLIC | Opcodes.ACC_STATIC;
            if (name.equals("Tool") && publicly && method.equals("main")
                && descriptor.equals("(Ljava/util/Map;)Ljava/lang/Object;")
                && (access & open) == open) {
                entered = true;
            }
            return new Code(this);
        }
    }

    private final class Code extends MethodVisitor {
        private final Judged in;

        Code(Judged in) {
            super(API);
            this.in = in;
        }

        @Override
        public void visitLineNumber(int line, Label start) {
            in.line = Math.max(1, line);
        }

        @Override
        public void visitAttribute(Attribute attribute) {
            in.visitAttribute(attribute);
        }

        @Override
        public void visitTypeInsn(int opcode, String type) {
            in.type(type);
        }

        @Override
        public void visitMultiANewArrayInsn(String descriptor, int dimensions) {
            in.descriptor(descriptor);
        }

        @Override
        public void visitTryCatchBlock(Label start, Label end, Label handler, String type) {
            if (type != null) {
                in.type(type);
            }
        }

        @Override
        public void visitFieldInsn(int opcode, String owner, String name, String descriptor) {
            in.member(owner, name, descriptor);
        }

        @Override
        public void visitMethodInsn(int opcode, String owner, String name, String descriptor,
            boolean isInterface) {
            in.member(owner, name, descriptor);
        }

        @Override
        public void visitLdcInsn(Object value) {
            if (value instanceof Type && ((Type) value).getSort() != Type.METHOD) {
                Type element = (Type) value;
                if (element.getSort() == Type.ARRAY) {
                    element = element.getElementType();
                }
                if (element.getSort() == Type.OBJECT) {
                    in.type(element.getInternalName());
                }
            } else if (value instanceof Type || value instanceof Handle
                || value instanceof ConstantDynamic) {
                in.tell("bootstrap", "a constant that is a method or is computed",
                    "compile it from Java source");
            }
        }

        @Override
        public void visitInvokeDynamicInsn(String name, String descriptor, Handle bootstrap,
            Object... arguments) {
            String key = bootstrap.getOwner() + "." + bootstrap.getName() + bootstrap.getDesc();
            if (!Rules.BOOTSTRAPS.contains(key) || bootstrap.getTag() != Opcodes.H_INVOKESTATIC) {
                in.tell("bootstrap", "invokedynamic by " + Rules.dotted(bootstrap.getOwner()) + "."
                    + bootstrap.getName(), "compile it from Java source");
            }
            in.descriptor(descriptor);
            for (Object each : arguments) {
                if (each instanceof Handle) {
                    Handle handle = (Handle) each;
                    in.member(handle.getOwner(), handle.getName(), handle.getDesc());
                } else if (each instanceof ConstantDynamic) {
                    in.tell("bootstrap", "a constant that is computed", "compile it from Java source");
                } else if (each instanceof Type) {
                    in.descriptor(((Type) each).getDescriptor());
                }
            }
        }
    }

    /** Whatever the JVM could resolve, also what no code that ASM saw refers to. */
    private void pool(ClassReader reader, Judged judged) {
        char[] buffer = new char[reader.getMaxStringLength()];
        judged.line = 0;
        for (int index = 1; index < reader.getItemCount(); index++) {
            int at = reader.getItem(index);
            if (at == 0) {
                continue; // the second half of a long or a double
            }
            switch (reader.readByte(at - 1)) {
                case CLASS:
                    String type = reader.readUTF8(at, buffer);
                    if (!Rules.OF_BOOTSTRAPS.contains(type)) {
                        judged.type(type);
                    }
                    break;
                case FIELD: case METHOD: case INTERFACE_METHOD:
                    String owner = reader.readClass(at, buffer);
                    int pair = reader.getItem(reader.readUnsignedShort(at + 2));
                    String name = reader.readUTF8(pair, buffer);
                    String descriptor = reader.readUTF8(pair + 2, buffer);
                    // In code these are refused above: none of these classes is on a list.
                    if (!Rules.BOOTSTRAPS.contains(owner + "." + name + descriptor)) {
                        judged.member(owner, name, descriptor);
                    }
                    break;
                case METHOD_TYPE:
                    judged.descriptor(reader.readUTF8(at, buffer));
                    break;
                case DYNAMIC: case MODULE: case PACKAGE:
                    judged.tell("bootstrap", "a constant that is computed, a module or a package",
                        "compile it from Java source");
                    break;
                default: // texts and numbers; names and types are judged with what they belong to
            }
        }
    }

    /** The JVM's own verification. Nothing is initialised by it. */
    private void link(File jar) throws IOException {
        try (URLClassLoader loader = new URLClassLoader(new URL[] {jar.toURI().toURL()},
            ClassLoader.getPlatformClassLoader())) {
            for (String name : classes.keySet()) {
                try {
                    Class.forName(name, false, loader).getDeclaredMethods();
                } catch (ClassNotFoundException | LinkageError error) {
                    findings.add(1, 1, "malformed", "the class " + name + " cannot be linked: " + error, "");
                }
            }
        }
    }
}
