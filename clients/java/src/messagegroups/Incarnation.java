package messagegroups;

import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;

/** What one life of a consumer knows: its messages in hand, and what it has seen (rule 4 of the protocol). */
final class Incarnation {
    enum Look { START, IGNORE, SETTLE_AGAIN, GAP }

    record Last(long epoch, long number) {}

    private static final int REMEMBERED_MAX = 4_096;
    private static final int GROUPS_MAX = 100_000;

    final String id = UUID.randomUUID().toString();
    long n; // of the latest join
    long last; // the highest number received
    long epoch; // the highest epoch received
    final TreeMap<Long, Message> inHand = new TreeMap<>(); // neither finished nor given up
    final TreeSet<Long> toSettle = new TreeSet<>(); // finished, and not said over this connection
    final TreeSet<Long> unconfirmed = new TreeSet<>(); // said, and not confirmed by RabbitMQ
    final Map<Long, Map<String, Object>> failures = new HashMap<>();
    private final Ranges finished = new Ranges();
    private final LinkedHashMap<String, Last> groups = new LinkedHashMap<>(16, 0.75f, true);
    private long forgottenEpoch;

    Look look(Message message) {
        if (inHand.containsKey(message.seq())) return Look.IGNORE;
        if (finished.has(message.seq())) return Look.SETTLE_AGAIN;
        return message.groupSeq == 0 || follows(message) ? Look.START : Look.GAP;
    }

    private boolean follows(Message message) {
        Last before = groups.get(message.key);
        if (before == null) return message.groupSeq == 1 || message.epoch <= forgottenEpoch;
        if (message.epoch == before.epoch) return message.groupSeq == before.number + 1;
        return message.epoch > before.epoch && message.groupSeq == 1;
    }

    void take(Message message) {
        inHand.put(message.seq(), message);
        last = Math.max(last, message.seq());
        epoch = Math.max(epoch, message.epoch);
        if (message.groupSeq == 0) return;
        groups.put(message.key, new Last(message.epoch, message.groupSeq));
        if (groups.size() > GROUPS_MAX) {
            Iterator<Last> oldest = groups.values().iterator();
            forgottenEpoch = Math.max(forgottenEpoch, oldest.next().epoch);
            oldest.remove();
        }
    }

    /** The message is done; with a reason it is given up. */
    void finish(Message message, String reason) {
        inHand.remove(message.seq());
        finished.add(message.seq());
        if (reason != null) {
            int attempts = Math.max(1, message.calls());
            failures.put(message.seq(), Map.of("seq", message.seq(), "reason", reason, "attempts", attempts));
        }
        toSettle.add(message.seq());
    }

    /** What was said over a connection that is lost has to be said again. */
    void forgetSaid() {
        toSettle.addAll(unconfirmed);
        unconfirmed.clear();
    }

    boolean isSettled() {
        return inHand.isEmpty() && toSettle.isEmpty() && unconfirmed.isEmpty();
    }

    /** It remembers so much that a new incarnation should go on. */
    boolean isFull() {
        return finished.size() > REMEMBERED_MAX || failures.size() > REMEMBERED_MAX;
    }
}
