package messagegroups;

/** Thrown by a handler: call me again after this time. If it does not count, it uses up no attempt. */
public final class RetryLater extends Exception {
    final long delayMs;
    final boolean counts;

    public RetryLater(long delayMs, String reason, boolean counts) {
        super(reason);
        this.delayMs = delayMs;
        this.counts = counts;
    }
}
