package stockade.tool;

import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;

/**
 * A tool of our own. What it loads and links is what most tools need: it is run before an archive is
 * made, and before a JVM waits for its input.
 */
final class Sample {
    private Sample() {}

    private static final String INPUT = "{\"items\":[{\"name\":\"a\\u00e4\\n\",\"price\":12.5,"
        + "\"count\":3},{\"name\":\"b\",\"price\":0.1234567890123456789,\"count\":12345678901234567890}],"
        + "\"flags\":[true,false,null],\"rate\":-1.5e3}";

    static void rehearse() {
        byte[] input = INPUT.getBytes(StandardCharsets.UTF_8);
        try {
            java.lang.reflect.Method main = Sample.class.getDeclaredMethod("main", Map.class);
            for (int i = 0; i < 3; i++) {
                Run.call(main, input, input.length, 1 << 16);
            }
        } catch (NoSuchMethodException error) {
            throw new AssertionError(error);
        }
    }

    static Object main(Map<String, Object> input) {
        List<?> items = (List<?>) input.get("items");
        BigDecimal total = BigDecimal.ZERO;
        Map<String, Object> byName = new TreeMap<>();
        for (Object item : items) {
            Map<?, ?> row = (Map<?, ?>) item;
            BigDecimal price = new BigDecimal(row.get("price").toString());
            total = total.add(price.multiply(new BigDecimal(row.get("count").toString())));
            byName.merge((String) row.get("name"), price, (a, b) -> b);
        }
        List<String> names = items.stream()
            .map(item -> ((Map<?, ?>) item).get("name").toString().toUpperCase())
            .filter(name -> !name.isEmpty()).sorted().collect(Collectors.toList());
        Map<String, Object> output = new LinkedHashMap<>();
        output.put("total", total);
        output.put("names", names);
        output.put("by name", byName);
        output.put("joined", String.join(", ", names) + ";" + names.size());
        output.put("format", String.format("%.2f", 1.5));
        output.put("numbers", new ArrayList<Object>(List.of(1, 2L, 0.5, Map.of("a", new int[] {1}))));
        return output;
    }
}
