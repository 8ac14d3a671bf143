package messagegroups;

/** Returning means: processed. Throwing means: call me again, until the lane's attempts are used up. */
@FunctionalInterface
public interface Handler {
    void handle(Message message) throws Exception;
}
