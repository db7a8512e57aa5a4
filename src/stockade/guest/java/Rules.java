package stockade.tool;

import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import jdk.internal.org.objectweb.asm.Type;

/**
 * What a tool's classes may refer to: its own, and of the JDK's what a policy names. Whatever the JVM
 * resolves for a class is a constant of its constant pool, so to judge these is to judge all.
 */
final class Rules {
    /** What a policy does not allow, and what to do about it. */
    static final class Problem {
        final String rule;
        final String sentence;
        final String suggestion;

        Problem(String rule, String sentence, String suggestion) {
            this.rule = rule;
            this.sentence = sentence;
            this.suggestion = suggestion;
        }
    }

    /** A class of the tool's own: what it declares, and what it is made from. */
    static final class Own {
        final Set<String> members = new HashSet<>();
        final List<String> parents = new ArrayList<>();
    }

    private static final String BOOTSTRAP_START = "(Ljava/lang/invoke/MethodHandles$Lookup;"
        + "Ljava/lang/String;Ljava/lang/invoke/MethodType;";
    /** What javac has invokedynamic call, to make lambdas, texts and the methods of records. */
    static final Set<String> BOOTSTRAPS = Set.of(
        "java/lang/invoke/LambdaMetafactory.metafactory" + BOOTSTRAP_START
            + "Ljava/lang/invoke/MethodType;Ljava/lang/invoke/MethodHandle;"
            + "Ljava/lang/invoke/MethodType;)Ljava/lang/invoke/CallSite;",
        "java/lang/invoke/LambdaMetafactory.altMetafactory" + BOOTSTRAP_START
            + "[Ljava/lang/Object;)Ljava/lang/invoke/CallSite;",
        "java/lang/invoke/StringConcatFactory.makeConcat" + BOOTSTRAP_START
            + ")Ljava/lang/invoke/CallSite;",
        "java/lang/invoke/StringConcatFactory.makeConcatWithConstants" + BOOTSTRAP_START
            + "Ljava/lang/String;[Ljava/lang/Object;)Ljava/lang/invoke/CallSite;",
        "java/lang/runtime/ObjectMethods.bootstrap(Ljava/lang/invoke/MethodHandles$Lookup;"
            + "Ljava/lang/String;Ljava/lang/invoke/TypeDescriptor;Ljava/lang/Class;"
            + "Ljava/lang/String;[Ljava/lang/invoke/MethodHandle;)Ljava/lang/Object;",
        "java/lang/runtime/SwitchBootstraps.typeSwitch" + BOOTSTRAP_START
            + "[Ljava/lang/Object;)Ljava/lang/invoke/CallSite;",
        "java/lang/runtime/SwitchBootstraps.enumSwitch" + BOOTSTRAP_START
            + "[Ljava/lang/Object;)Ljava/lang/invoke/CallSite;");
    /**
     * Named by every class that has an invokedynamic. As constants they are harmless, for none of
     * their members is allowed but as a bootstrap; in code they are refused.
     */
    static final Set<String> OF_BOOTSTRAPS = Set.of(
        "java/lang/invoke/LambdaMetafactory", "java/lang/invoke/StringConcatFactory",
        "java/lang/runtime/ObjectMethods", "java/lang/runtime/SwitchBootstraps",
        "java/lang/invoke/MethodHandles", "java/lang/invoke/MethodHandles$Lookup");

    private final Set<String> packages = new HashSet<>();
    private final Set<String> classes = new HashSet<>();
    private final Map<String, Set<String>> members = new HashMap<>();
    private final Set<String> refused = new HashSet<>();
    private final Map<String, Own> own;

    Rules(Map<?, ?> policy, Map<String, Own> own) {
        this.own = own;
        packages.addAll(names(policy.get("packages")));
        classes.addAll(names(policy.get("classes")));
        refused.addAll(names(policy.get("refused")));
        for (Map.Entry<?, ?> entry : ((Map<?, ?>) policy.get("members")).entrySet()) {
            members.put((String) entry.getKey(), new HashSet<>(names(entry.getValue())));
        }
    }

    private static List<String> names(Object list) {
        List<String> names = new ArrayList<>();
        for (Object name : (List<?>) list) {
            names.add((String) name);
        }
        return names;
    }

    /** A class, or an array of one, by its name inside class files; null where it is allowed. */
    Problem type(String internal) {
        String name = internal;
        if (name.startsWith("[")) {
            Type element = Type.getType(name).getElementType();
            if (element.getSort() != Type.OBJECT) {
                return null;
            }
            name = element.getInternalName();
        }
        if (own.containsKey(name) || allowed(dotted(name))) {
            return null;
        }
        String shown = dotted(name);
        return new Problem("class", shown + " is not on the list of classes",
            "do without it, or have the policy grant it: \"classes\": [\"" + shown + "\"]");
    }

    /** Every class that a descriptor of a method or a field names. */
    Problem descriptor(String descriptor) {
        List<Type> types = new ArrayList<>();
        Type whole = Type.getType(descriptor);
        if (whole.getSort() == Type.METHOD) {
            types.addAll(List.of(whole.getArgumentTypes()));
            types.add(whole.getReturnType());
        } else {
            types.add(whole);
        }
        for (Type type : types) {
            Type element = type.getSort() == Type.ARRAY ? type.getElementType() : type;
            if (element.getSort() == Type.OBJECT) {
                Problem problem = type(element.getInternalName());
                if (problem != null) {
                    return problem;
                }
            }
        }
        return null;
    }

    /** A method or field, as a class file refers to it; null where it is allowed. */
    Problem member(String owner, String name, String descriptor) {
        if (owner.startsWith("[")) {
            Problem problem = type(owner);
            if (problem == null && !name.equals("clone")) {
                problem = judged("java.lang.Object", name, descriptor);
            }
            return problem;
        }
        Problem problem = descriptor(descriptor);
        if (problem == null) {
            problem = own.containsKey(owner)
                ? inherited(owner, name, descriptor, new HashSet<>())
                : type(owner);
        }
        if (problem == null && !own.containsKey(owner)) {
            return judged(dotted(owner), name, descriptor);
        }
        return problem;
    }

    /** A member of the tool's own class may be one that it has from the JDK. */
    private Problem inherited(String owner, String name, String descriptor, Set<String> seen) {
        Own declared = own.get(owner);
        if (declared.members.contains(name + descriptor) || !seen.add(owner)) {
            return null;
        }
        for (String parent : declared.parents) {
            Problem problem = own.containsKey(parent)
                ? inherited(parent, name, descriptor, seen)
                : declaring(dotted(parent), name, descriptor) == null
                    ? null : judged(dotted(parent), name, descriptor);
            if (problem != null) {
                return problem;
            }
        }
        return null;
    }

    /** Of the JDK's class, and of the one that it has the member from. */
    private Problem judged(String owner, String name, String descriptor) {
        String place = owner;
        boolean fine = granted(owner, name, descriptor);
        Class<?> from = declaring(owner, name, descriptor);
        if (fine && from != null && !from.getName().equals(owner)) {
            place = from.getName();
            // What is not public is how the JDK made the class that the policy names.
            fine = granted(place, name, descriptor)
                && (!Modifier.isPublic(from.getModifiers()) || allowed(place));
        }
        if (fine) {
            return null;
        }
        String shown = name.equals("<init>") ? "new " + place : place + "." + name;
        return new Problem("member", shown + " is not on the list",
            "do without it, or have the policy grant it: \"members\": {\"" + place + "\": [\"" + name
                + "\"]}");
    }

    private boolean denied(String owner, String name, String descriptor) {
        return refused.contains(owner) || refused.contains(owner + "." + name)
            || refused.contains(owner + "." + name + descriptor);
    }

    private boolean granted(String owner, String name, String descriptor) {
        if (denied(owner, name, descriptor)) {
            return false;
        }
        Set<String> listed = members.get(owner);
        return listed == null || listed.contains(name) || listed.contains(name + descriptor);
    }

    private boolean allowed(String name) {
        if (members.containsKey(name)) {
            return true;
        }
        int dot = name.lastIndexOf('.');
        boolean listed = dot > 0 && packages.contains(name.substring(0, dot));
        // A class is listed with those inside it.
        for (String outer = name; ; ) {
            if (refused.contains(outer)) {
                return false;
            }
            listed |= classes.contains(outer);
            int inner = outer.lastIndexOf('$');
            if (inner <= dot + 1) {
                return listed;
            }
            outer = outer.substring(0, inner);
        }
    }

    /** Nothing is initialised by this; and only names that the policy allows come here. */
    private static Class<?> declaring(String owner, String name, String descriptor) {
        try {
            return search(
                Class.forName(owner, false, ClassLoader.getPlatformClassLoader()), name, descriptor);
        } catch (ClassNotFoundException | LinkageError error) {
            return null;
        }
    }

    private static Class<?> search(Class<?> in, String name, String descriptor) {
        for (Class<?> each = in; each != null; each = each.getSuperclass()) {
            if (declares(each, name, descriptor)) {
                return each;
            }
        }
        for (Class<?> each = in; each != null; each = each.getSuperclass()) {
            for (Class<?> parent : each.getInterfaces()) {
                Class<?> found = search(parent, name, descriptor);
                if (found != null) {
                    return found;
                }
            }
        }
        return null;
    }

    private static boolean declares(Class<?> in, String name, String descriptor) {
        if (!descriptor.startsWith("(")) {
            for (Field field : in.getDeclaredFields()) {
                if (field.getName().equals(name)) {
                    return true;
                }
            }
        } else if (name.equals("<init>")) {
            for (Constructor<?> each : in.getDeclaredConstructors()) {
                if (Type.getConstructorDescriptor(each).equals(descriptor)) {
                    return true;
                }
            }
        } else {
            for (Method each : in.getDeclaredMethods()) {
                if (each.getName().equals(name)
                    && Type.getMethodDescriptor(each).equals(descriptor)) {
                    return true;
                }
            }
        }
        return false;
    }

    static String dotted(String internal) {
        return internal.replace('/', '.');
    }
}
