package messagegroups;

import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.LongString;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Base64;
import java.util.Map;

/** A message as a handler gets it. */
public final class Message {
    public final byte[] body;
    public final BasicProperties properties;
    /** The group as its producer sent it; null without one. */
    public final byte[] group;
    /** Rises with every change of the group's owner: let a database refuse writes with an older one. */
    public final long epoch;
    /** 1, 2, 3 … within the group and epoch; 0 where nothing is in order. */
    public final long groupSeq;
    /** Hand-overs of this message, this one included. */
    public final long attempt;
    /** When the message expires; null: never. */
    public final Instant deadline;

    private final long seq;
    final String id;
    final String key; // the group in base64
    boolean isSaid; // a settle over this connection has named it as begun
    private Thread thread; // that runs its handler
    private volatile int calls;
    private volatile boolean lost;

    Message(BasicProperties properties, byte[] body) {
        this.body = body;
        this.properties = properties;
        seq = number("seq", 0);
        epoch = number("epoch", 0);
        groupSeq = number("group-seq", 0);
        attempt = number("attempt", 1);
        deadline = header("deadline") instanceof Number found ? Instant.ofEpochMilli(found.longValue()) : null;
        id = String.valueOf(header("id"));
        Object coded = header("group-base64");
        Object plain = header("group");
        if (coded != null) group = Base64.getDecoder().decode(coded.toString());
        else if (plain instanceof LongString bytes) group = bytes.getBytes();
        else group = plain == null ? null : plain.toString().getBytes(StandardCharsets.UTF_8);
        key = group == null ? null : Base64.getEncoder().encodeToString(group);
    }

    /** Its number in this incarnation of the consumer. */
    public long seq() {
        return seq;
    }

    static boolean isCopy(BasicProperties properties) {
        Map<String, Object> headers = properties.getHeaders();
        return headers != null && headers.containsKey("x-dispatch-seq");
    }

    private Object header(String name) {
        return properties.getHeaders().get("x-dispatch-" + name);
    }

    private long number(String name, long otherwise) {
        return header(name) instanceof Number found ? found.longValue() : otherwise;
    }

    public String groupText() {
        return group == null ? null : new String(group, StandardCharsets.UTF_8);
    }

    /** Calls of the handler in this hand-over, this one included. */
    public int calls() {
        return calls;
    }

    void calls(int count) {
        calls = count;
    }

    /** It has gone to another consumer: nothing that the handler does counts any more. */
    public boolean isLost() {
        return lost;
    }

    /** Who works on it now; null: nobody. */
    synchronized void workedOnBy(Thread worker) {
        thread = worker;
    }

    /** Also interrupts its handler. */
    synchronized void lose() {
        lost = true;
        if (thread != null) thread.interrupt();
    }
}
