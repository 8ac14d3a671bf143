package messagegroups;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;

/** A growing set of numbers that remembers ranges only. */
final class Ranges {
    private final TreeMap<Long, Long> lastOf = new TreeMap<>(); // first → last

    /** [[first, last], …] of these numbers, as the protocol has them. */
    static List<List<Long>> of(Collection<Long> numbers) {
        List<List<Long>> ranges = new ArrayList<>();
        long first = 0, last = -1;
        for (long number : new TreeSet<>(numbers)) {
            if (number != last + 1 || last < 0) {
                if (last >= 0) ranges.add(List.of(first, last));
                first = number;
            }
            last = number;
        }
        if (last >= 0) ranges.add(List.of(first, last));
        return ranges;
    }

    boolean has(long number) {
        Map.Entry<Long, Long> range = lastOf.floorEntry(number);
        return range != null && number <= range.getValue();
    }

    void add(long number) {
        if (has(number)) return;
        Map.Entry<Long, Long> before = lastOf.floorEntry(number);
        long first = before != null && before.getValue() + 1 == number ? before.getKey() : number;
        Long next = lastOf.remove(number + 1);
        lastOf.put(first, next == null ? Long.valueOf(number) : next);
    }

    int size() {
        return lastOf.size();
    }
}
