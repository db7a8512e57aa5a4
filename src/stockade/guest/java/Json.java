package stockade.tool;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * JSON (RFC 8259), strict and bounded; the JDK has none. No lambda and no stream: each would cost
 * the start of every JVM.
 */
final class Json {
    /** What the host reads, less the answer around it. */
    static final int MOST_LEVELS = 60;
    static final int MOST_DIGITS = 100;
    private static final int LONGEST_PLACE = 200;

    private Json() {}

    /** What is no JSON, or more than the bounds allow, and where. */
    static class Refused extends RuntimeException {
        private static final long serialVersionUID = 1L;
        final String place;

        Refused(String place, String sentence) {
            super(sentence, null, false, false);
            this.place = place;
        }
    }

    /** More of it than there may be. */
    static final class TooLarge extends Refused {
        private static final long serialVersionUID = 1L;

        TooLarge(String place, String sentence) {
            super(place, sentence);
        }
    }

    // --- reading ----------------------------------------------------------------------------------

    /**
     * A whole number is a Long, or a BigInteger where it does not fit; another one is a Double where
     * that is exactly what is written, else a BigDecimal. No digit is ever lost.
     */
    static Object read(byte[] bytes, int length) {
        String text;
        try {
            text = StandardCharsets.UTF_8.newDecoder()
                .onMalformedInput(CodingErrorAction.REPORT)
                .onUnmappableCharacter(CodingErrorAction.REPORT)
                .decode(ByteBuffer.wrap(bytes, 0, length)).toString();
        } catch (CharacterCodingException error) {
            throw new Refused("", "it is no UTF-8");
        }
        Reader reader = new Reader(text);
        Object value = reader.value(0);
        reader.space();
        if (reader.at < text.length()) {
            throw reader.refused("something follows the value");
        }
        return value;
    }

    private static final class Reader {
        private final String text;
        int at;

        Reader(String text) {
            this.text = text;
        }

        Refused refused(String sentence) {
            return new Refused("", sentence + ", at character " + (at + 1));
        }

        void space() {
            while (at < text.length()) {
                char c = text.charAt(at);
                if (c != ' ' && c != '\n' && c != '\r' && c != '\t') {
                    return;
                }
                at++;
            }
        }

        Object value(int level) {
            if (level > MOST_LEVELS) {
                throw refused("it is nested deeper than " + MOST_LEVELS + " levels");
            }
            space();
            switch (peek()) {
                case '{': return object(level);
                case '[': return array(level);
                case '"': return string();
                case 't': return word("true", Boolean.TRUE);
                case 'f': return word("false", Boolean.FALSE);
                case 'n': return word("null", null);
                default: return number();
            }
        }

        private int peek() {
            return at < text.length() ? text.charAt(at) : -1;
        }

        private Object word(String word, Object value) {
            if (!text.startsWith(word, at)) {
                throw refused("there is no JSON value");
            }
            at += word.length();
            return value;
        }

        private void want(char c, String what) {
            space();
            if (peek() != c) {
                throw refused(what + " is missing");
            }
            at++;
        }

        private Map<String, Object> object(int level) {
            Map<String, Object> members = new LinkedHashMap<>();
            at++;
            space();
            if (peek() == '}') {
                at++;
                return members;
            }
            while (true) {
                space();
                if (peek() != '"') {
                    throw refused("a name in quotes is missing");
                }
                String name = string();
                want(':', "a colon");
                if (members.containsKey(name)) {
                    throw refused("a name occurs twice");
                }
                members.put(name, value(level + 1));
                space();
                if (peek() != ',') {
                    want('}', "a comma, or the end of the object,");
                    return members;
                }
                at++;
            }
        }

        private List<Object> array(int level) {
            List<Object> items = new ArrayList<>();
            at++;
            space();
            if (peek() == ']') {
                at++;
                return items;
            }
            while (true) {
                items.add(value(level + 1));
                space();
                if (peek() != ',') {
                    want(']', "a comma, or the end of the array,");
                    return items;
                }
                at++;
            }
        }

        private String string() {
            at++;
            int end = at;
            while (end < text.length() && text.charAt(end) != '"' && text.charAt(end) != '\\'
                && text.charAt(end) >= ' ') {
                end++;
            }
            if (end < text.length() && text.charAt(end) == '"') {
                String plain = text.substring(at, end);
                at = end + 1;
                return plain;
            }
            StringBuilder built = new StringBuilder();
            while (true) {
                int c = peek();
                if (c < ' ') {
                    throw refused(c < 0 ? "a text does not end" : "a control character in a text");
                }
                at++;
                if (c == '"') {
                    break;
                }
                built.append(c == '\\' ? escaped() : (char) c);
            }
            if (lonely(built) >= 0) {
                throw refused("half a surrogate pair");
            }
            return built.toString();
        }

        private char escaped() {
            int c = peek();
            at++;
            switch (c) {
                case '"': case '\\': case '/': return (char) c;
                case 'b': return '\b';
                case 'f': return '\f';
                case 'n': return '\n';
                case 'r': return '\r';
                case 't': return '\t';
                case 'u': break;
                default: throw refused("an escape that there is not");
            }
            int unit = 0;
            for (int i = 0; i < 4; i++) {
                int digit = peek() < 128 ? Character.digit(peek(), 16) : -1;
                if (digit < 0) {
                    throw refused("an escape of four digits is cut");
                }
                unit = unit * 16 + digit;
                at++;
            }
            return (char) unit;
        }

        private int digits() {
            int from = at;
            while (peek() >= '0' && peek() <= '9') {
                at++;
            }
            if (at == from) {
                throw refused("there is no JSON value");
            }
            return at - from;
        }

        private Object number() {
            int from = at;
            boolean whole = true;
            if (peek() == '-') {
                at++;
            }
            int first = peek();
            if (digits() > 1 && first == '0') {
                throw refused("a number begins with 0");
            }
            if (peek() == '.') {
                whole = false;
                at++;
                digits();
            }
            if (peek() == 'e' || peek() == 'E') {
                whole = false;
                at++;
                if (peek() == '+' || peek() == '-') {
                    at++;
                }
                if (digits() > 5) {
                    throw refused("an exponent of more than 5 digits");
                }
            }
            if (at - from > MOST_DIGITS + 8) {
                throw refused("a number of more than " + MOST_DIGITS + " digits");
            }
            String written = text.substring(from, at);
            if (whole) {
                if (written.length() <= 18) {
                    return Long.parseLong(written);
                }
                BigInteger big = new BigInteger(written);
                return big.bitLength() <= 63 ? (Object) big.longValue() : big;
            }
            double rounded = Double.parseDouble(written);
            if (written.length() <= 16 && !Double.isInfinite(rounded) && exactlyShown(written)) {
                return rounded;
            }
            BigDecimal exact = new BigDecimal(written);
            if (Double.isInfinite(rounded)
                || new BigDecimal(Double.toString(rounded)).compareTo(exact) != 0) {
                return exact;
            }
            return rounded;
        }

        /** Fifteen digits without an exponent always survive a double. */
        private static boolean exactlyShown(String written) {
            return written.indexOf('e') < 0 && written.indexOf('E') < 0;
        }
    }

    /** Where half a surrogate pair stands; -1 where there is none. */
    private static int lonely(CharSequence text) {
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (Character.isSurrogate(c)) {
                if (Character.isLowSurrogate(c) || i + 1 == text.length()
                    || !Character.isLowSurrogate(text.charAt(i + 1))) {
                    return i;
                }
                i++;
            }
        }
        return -1;
    }

    // --- writing ----------------------------------------------------------------------------------

    /** Writes what a tool returned; characters beyond ``most`` are never kept. */
    static final class Writer {
        private final StringBuilder written = new StringBuilder();
        private final int most;
        private final List<Object> place = new ArrayList<>();
        private final Map<Object, Boolean> open = new IdentityHashMap<>();

        Writer(int most) {
            this.most = most;
        }

        Refused refused(String sentence) {
            return new Refused(pointer(), sentence);
        }

        /** RFC 6901. */
        private String pointer() {
            StringBuilder pointer = new StringBuilder();
            for (int i = 0; i < place.size() && pointer.length() < LONGEST_PLACE; i++) {
                String step = String.valueOf(place.get(i));
                if (step.length() > LONGEST_PLACE) {
                    step = step.substring(0, LONGEST_PLACE);
                }
                pointer.append('/').append(step.replace("~", "~0").replace("/", "~1"));
            }
            return pointer.toString();
        }

        private void room(int length) {
            if (length > most - written.length()) {
                throw new TooLarge(pointer(), "the output has more than " + most + " characters");
            }
        }

        Writer raw(String text) {
            room(text.length());
            written.append(text);
            return this;
        }

        @Override
        public String toString() {
            return written.toString();
        }

        Writer value(Object value) {
            if (value == null || value instanceof Boolean) {
                return raw(String.valueOf(value));
            } else if (value instanceof CharSequence || value instanceof Character) {
                return string(value.toString());
            } else if (value instanceof Number) {
                return number((Number) value);
            } else if (value instanceof Map) {
                enter(value);
                members((Map<?, ?>) value);
            } else if (value instanceof Collection) {
                enter(value);
                items(((Collection<?>) value).iterator());
            } else if (value.getClass().isArray()) {
                if (value instanceof byte[]) {
                    throw refused("bytes are no JSON: return a text, of java.util.Base64 for instance");
                }
                enter(value);
                array(value);
            } else {
                throw refused("a " + named(value) + " is no JSON: return Map, List, an array, String, "
                    + "a number, Boolean or null");
            }
            open.remove(value);
            return this;
        }

        private void enter(Object value) {
            if (place.size() >= MOST_LEVELS) {
                throw refused("it is nested deeper than " + MOST_LEVELS + " levels");
            }
            if (open.put(value, Boolean.TRUE) != null) {
                throw refused("it contains itself");
            }
        }

        private void step(Object to) {
            place.add(to);
        }

        private void back() {
            place.remove(place.size() - 1);
        }

        private void members(Map<?, ?> map) {
            raw("{");
            boolean first = true;
            java.util.Set<String> names = new java.util.HashSet<>();
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                Object key = entry.getKey();
                if (!(key instanceof CharSequence)) {
                    throw refused("a key is " + (key == null ? "null" : "a " + named(key))
                        + ", and no String");
                }
                String name = key.toString();
                if (!names.add(name)) {
                    throw refused("a key occurs twice");
                }
                if (!first) {
                    raw(",");
                }
                first = false;
                step(name);
                string(name).raw(":").value(entry.getValue());
                back();
            }
            raw("}");
        }

        private void items(java.util.Iterator<?> items) {
            raw("[");
            for (int i = 0; items.hasNext(); i++) {
                if (i > 0) {
                    raw(",");
                }
                step(i);
                value(items.next());
                back();
            }
            raw("]");
        }

        private void array(Object array) {
            raw("[");
            int length = java.lang.reflect.Array.getLength(array);
            for (int i = 0; i < length; i++) {
                if (i > 0) {
                    raw(",");
                }
                step(i);
                value(java.lang.reflect.Array.get(array, i));
                back();
            }
            raw("]");
        }

        private Writer number(Number value) {
            Class<?> kind = value.getClass();
            if (kind == Long.class || kind == Integer.class || kind == Short.class
                || kind == Byte.class) {
                return raw(Long.toString(value.longValue()));
            } else if (kind == Double.class || kind == Float.class) {
                if (Double.isNaN(value.doubleValue()) || Double.isInfinite(value.doubleValue())) {
                    throw refused(value + " is no JSON");
                }
                return raw(value.toString());
            } else if (kind == BigInteger.class) {
                bound((BigInteger) value);
                return raw(value.toString());
            } else if (kind == BigDecimal.class) {
                bound(((BigDecimal) value).unscaledValue());
                if (Double.isInfinite(value.doubleValue())) {
                    throw refused("a number beyond those that readers of JSON know");
                }
                return raw(value.toString());
            }
            throw refused("a " + named(value) + " is no JSON: return its longValue() or doubleValue()");
        }

        private void bound(BigInteger digits) {
            // Spelling very many takes long.
            if (digits.bitLength() > MOST_DIGITS * 4
                || digits.abs().toString().length() > MOST_DIGITS) {
                throw refused("a number of more than " + MOST_DIGITS + " digits");
            }
        }

        Writer string(String text) {
            int lonely = lonely(text);
            if (lonely >= 0) {
                throw refused("half a surrogate pair, at character " + (lonely + 1) + " of a text");
            }
            room(text.length() + 2);
            written.append('"');
            for (int i = 0; i < text.length(); i++) {
                char c = text.charAt(i);
                if (c == '"' || c == '\\') {
                    written.append('\\').append(c);
                } else if (c == '\n') {
                    written.append("\\n");
                } else if (c < ' ') {
                    written.append(c < 16 ? "\\u000" : "\\u00").append(Integer.toHexString(c));
                } else {
                    written.append(c);
                }
            }
            room(1);
            written.append('"');
            return this;
        }

        private static String named(Object value) {
            String name = value.getClass().getName();
            return name.length() > 100 ? name.substring(0, 100) : name;
        }
    }
}
