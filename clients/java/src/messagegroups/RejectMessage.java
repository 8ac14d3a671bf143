package messagegroups;

/** Thrown by a handler: no attempt will succeed. The message goes to the dead queue at once. */
public final class RejectMessage extends Exception {
    public RejectMessage(String reason) {
        super(reason);
    }
}
