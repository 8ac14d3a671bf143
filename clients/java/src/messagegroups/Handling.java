package messagegroups;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

/**
 * Calls the handler: groups side by side, one message of a group at a time, failing ones again in place.
 * Everything but the handler itself runs on the loop's thread.
 */
final class Handling {
    interface Owner {
        /** Runs `begin` now, or when RabbitMQ knows that the message is to begin. */
        void announce(Message message, Runnable begin);

        void ended(Message message, String reason);
    }

    private static final long BACKOFF_MS_MAX = 60_000;

    final int concurrency;
    final Set<Message> begun = new HashSet<>(); // those between two attempts included
    long attempts = 3; // the lane's; a welcome says them
    long backoffMs = 1_000;
    private final Handler handler;
    private final Owner owner;
    private final ScheduledExecutorService loop;
    private final ExecutorService threads;
    private final TreeMap<Long, Message> ready = new TreeMap<>(); // may begin
    private final Map<String, ArrayDeque<Message>> groups = new HashMap<>(); // what is behind the one at work
    private final Map<Message, ScheduledFuture<?>> paused = new HashMap<>(); // between two attempts
    private int running;
    private boolean goesOn;

    Handling(Handler handler, int concurrency, Owner owner, ScheduledExecutorService loop) {
        this.handler = handler;
        this.concurrency = concurrency;
        this.owner = owner;
        this.loop = loop;
        threads = Executors.newFixedThreadPool(concurrency);
    }

    /** Whether anything may begin; what has begun goes on in any case. */
    void goesOn(boolean yes) {
        goesOn = yes;
        fill();
    }

    void add(Message message) {
        ArrayDeque<Message> waiting = message.key == null ? null : groups.get(message.key);
        if (waiting != null) {
            waiting.add(message);
            return;
        }
        if (message.key != null) groups.put(message.key, new ArrayDeque<>());
        makeReady(message);
    }

    /** These messages have gone to other consumers. Handlers that run still keep their group busy. */
    void lose(Collection<Message> messages) {
        groups.values().forEach(ArrayDeque::clear);
        List<Message> idle = new ArrayList<>(ready.values());
        idle.addAll(paused.keySet());
        paused.values().forEach(timer -> timer.cancel(false));
        ready.clear();
        paused.clear();
        begun.clear();
        idle.forEach(this::release);
        messages.forEach(Message::lose);
    }

    /** Messages that have begun and that no settle over this connection has named. */
    long unsaid() {
        return begun.stream().filter(message -> !message.isSaid).count();
    }

    void close() {
        threads.shutdown();
    }

    private void makeReady(Message message) {
        ready.put(message.seq(), message);
        fill();
    }

    private void fill() {
        while (goesOn && running < concurrency && !ready.isEmpty()) {
            Message message = ready.pollFirstEntry().getValue();
            running++;
            message.calls(message.calls() + 1);
            begun.add(message);
            owner.announce(message, () -> threads.execute(() -> call(message)));
        }
    }

    /** On a thread of its own. */
    private void call(Message message) {
        Throwable thrown = null;
        try {
            message.workedOnBy(Thread.currentThread());
            if (!message.isLost()) handler.handle(message);
        } catch (Throwable error) {
            thrown = error;
        }
        message.workedOnBy(null);
        Thread.interrupted(); // the next message's handler begins without it
        Throwable outcome = thrown;
        loop.execute(() -> called(message, outcome));
    }

    private void called(Message message, Throwable thrown) {
        running--;
        if (message.isLost()) release(message);
        else if (thrown == null) end(message, null);
        else failed(message, thrown);
        fill();
    }

    private void failed(Message message, Throwable error) {
        RetryLater later = error instanceof RetryLater found ? found : null;
        boolean counts = later == null || later.counts;
        if (!counts) message.calls(message.calls() - 1);
        if (error instanceof RejectMessage || (counts && message.calls() >= attempts)) {
            end(message, error.getMessage() == null ? error.toString() : error.getMessage());
            return;
        }
        long doubled = backoffMs << Math.min(30, Math.max(0, message.calls() - 1));
        long delayMs = later != null ? later.delayMs : Math.min(doubled, BACKOFF_MS_MAX);
        Runnable again = () -> {
            paused.remove(message);
            makeReady(message);
        };
        paused.put(message, loop.schedule(again, delayMs, TimeUnit.MILLISECONDS));
    }

    private void end(Message message, String reason) {
        begun.remove(message);
        release(message);
        owner.ended(message, reason);
    }

    private void release(Message message) {
        if (message.key == null) return;
        Message next = groups.get(message.key).poll();
        if (next == null) groups.remove(message.key);
        else makeReady(next);
    }
}
