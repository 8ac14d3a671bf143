package messagegroups;

/** The dispatcher, or RabbitMQ at the first login, does not take this consumer. */
public final class ConsumerRefused extends Exception {
    public ConsumerRefused(String reason) {
        super(reason);
    }
}
