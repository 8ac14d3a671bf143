package messagegroups;

import com.rabbitmq.client.AMQP.BasicProperties;
import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.SequenceInputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Several copies in one AMQP message. */
final class Bundle {
    /** What is taken as one message, at most. */
    static final Map<String, Object> LIMITS = Map.of("messages", 64, "bytes", 65_536);
    /** Of a content header, as amqp-client reads it, before the property flags: weight and size of the body. */
    private static final int BEFORE_FLAGS = 10;

    private Bundle() {}

    /** The copies, in their order. IOException: a part of it can't be read, so none of it counts. */
    static List<Message> split(byte[] bundle) throws IOException {
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(bundle));
        List<Message> copies = new ArrayList<>();
        while (in.available() > 0) {
            BasicProperties properties = properties(field(in));
            byte[] body = field(in);
            if (!Message.isCopy(properties)) throw new IOException("a part of it has no number");
            copies.add(new Message(properties, body));
        }
        return copies;
    }

    private static byte[] field(DataInputStream in) throws IOException {
        int length = in.readInt();
        if (length < 0 || length > in.available()) throw new EOFException("it ends within a copy");
        return in.readNBytes(length);
    }

    private static BasicProperties properties(byte[] list) throws IOException {
        return new BasicProperties(new DataInputStream(new SequenceInputStream(
            new ByteArrayInputStream(new byte[BEFORE_FLAGS]), new ByteArrayInputStream(list))));
    }
}
