package messagegroups;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.AuthenticationFailureException;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/**
 * A consumer of a lane: docs/protocol.md on amqp-client. The rules that comments name are those of that page.
 *
 * <p>One thread, the loop, has all state; connections and handlers hand what happens to it.
 */
public final class GroupConsumer {
    private static final long RETRY_MS = 1_000; // between attempts to connect and to join
    private static final long SETTLE_MS = 5; // settles of this time go together
    private static final long ANNOUNCE_MS = 50; // how long a message that was handed over before waits for a confirm
    private static final int BEGUN_MAX = 64; // of more begun messages not every settle says which
    private static final long TAKEN_MS = 500; // how long one that has left waits for the dispatcher's last word
    private static final long OFFLINE_MS = 30_000; // then the messages in hand count as lost

    private enum Leaving { NO, TO_STOP, TO_BEGIN_ANEW }

    private final String url;
    private final String consumerId;
    private final int prefetch;
    private final String exchange;
    private final ScheduledExecutorService loop = // what comes after its end is nobody's concern
        new ScheduledThreadPoolExecutor(1, new ThreadPoolExecutor.DiscardPolicy());
    private final CompletableFuture<Void> end = new CompletableFuture<>();
    private Incarnation me = new Incarnation();
    private Session session; // null: no connection
    private Handling handling;
    private Leaving leaving = Leaving.NO;
    private ScheduledFuture<?> settleTimer;
    private ScheduledFuture<?> offlineTimer;
    private long begunSaidAt;
    private long gapAt;
    private String lastProblem = "";
    private boolean hasConnected;
    private boolean isStrict;
    private String user; // of the URL, where the lane wants to know it

    /** One connection. */
    private final class Session {
        Connection connection;
        Channel channel;
        String queue;
        String tag;
        ScheduledFuture<?> timer; // of joins, or of heartbeats
        Runnable repeated = () -> {};
        boolean isWelcome;
        boolean wasWelcomed;
        boolean isDeaf; // copies are forgotten
        boolean isOver;
        long heartbeatMs = RETRY_MS;
        final TreeMap<Long, Runnable> unconfirmed = new TreeMap<>();
    }

    public GroupConsumer(String url, String lane, String consumerId, int prefetch) {
        this(url, lane, consumerId, prefetch, "dispatch");
    }

    public GroupConsumer(String url, String lane, String consumerId, int prefetch, String prefix) {
        this.url = url;
        this.consumerId = consumerId;
        this.prefetch = prefetch;
        this.exchange = prefix + "." + lane;
    }

    /** For a lane with `strict_identity`: RabbitMQ checks that it is the URL's user who settles. */
    public GroupConsumer strictIdentity() {
        isStrict = true;
        return this;
    }

    /** Call the handler for every message, until `stop`; returns when everything in hand is settled. */
    public void run(Handler handler, int concurrency) throws ConsumerRefused, InterruptedException {
        if (concurrency < 1) throw new IllegalArgumentException("concurrency is " + concurrency + ": at least 1");
        Handling.Owner owner = new Handling.Owner() {
            public void announce(Message message, Runnable begin) {
                GroupConsumer.this.announce(message, begin);
            }

            public void ended(Message message, String reason) {
                GroupConsumer.this.ended(message, reason);
            }
        };
        handling = new Handling(handler, concurrency, owner, loop);
        loop.execute(this::connect);
        try {
            end.get();
        } catch (ExecutionException error) {
            if (error.getCause() instanceof ConsumerRefused refused) throw refused;
            throw new IllegalStateException(error.getCause());
        } finally {
            loop.execute(this::close);
        }
    }

    /** Nothing is left that would keep the process: no connection, no timer, no handler. */
    private void close() {
        handling.lose(me.inHand.values()); // there are none, but after an error
        handling.close();
        if (session != null) drop(session);
        loop.shutdownNow();
    }

    /** Leave: nothing new comes, and `run` returns when everything in hand is settled. */
    public void stop() {
        loop.execute(() -> {
            if (leaving == Leaving.TO_STOP) return;
            leaving = Leaving.TO_STOP;
            leave();
            if (session == null && me.isSettled()) end.complete(null);
        });
    }

    private ScheduledFuture<?> later(long ms, Runnable act) {
        return loop.schedule(() -> safely(act), ms, TimeUnit.MILLISECONDS);
    }

    private void safely(Runnable act) {
        try {
            act.run();
        } catch (RuntimeException error) {
            end.completeExceptionally(error); // a bug: better no consumer than one that does half
        }
    }

    private static void cancel(ScheduledFuture<?> timer) {
        if (timer != null) timer.cancel(false);
    }

    // --- the connection ---

    private void connect() {
        Session made = new Session();
        if (offlineTimer == null) offlineTimer = later(OFFLINE_MS, this::renew);
        try {
            ConnectionFactory factory = new ConnectionFactory();
            factory.setUri(url);
            if (factory.getVirtualHost().isEmpty()) factory.setVirtualHost("/"); // as other clients read `…/`
            factory.setAutomaticRecoveryEnabled(false);
            factory.setTopologyRecoveryEnabled(false);
            factory.setRequestedHeartbeat(10);
            factory.setConnectionTimeout(10_000);
            if (isStrict) user = factory.getUsername();
            made.connection = factory.newConnection("consumer " + consumerId);
            hasConnected = true;
            made.connection.addShutdownListener(cause -> loop.execute(() -> over(made, String.valueOf(cause.getMessage()))));
            made.channel = made.connection.createChannel();
            made.channel.addShutdownListener(cause -> loop.execute(() -> over(made, String.valueOf(cause.getMessage()))));
            made.channel.addReturnListener((code, text, from, key, properties, body) ->
                loop.execute(() -> over(made, "the dispatcher has not run yet")));
            made.channel.addConfirmListener(
                (tag, multiple) -> loop.execute(() -> safely(() -> confirmed(made, tag, multiple))),
                (tag, multiple) -> loop.execute(() -> over(made, "RabbitMQ did not take a control message")));
            made.channel.confirmSelect();
            session = made;
            cancel(offlineTimer);
            offlineTimer = null;
            me.forgetSaid();
            handling.begun.forEach(message -> message.isSaid = false);
            newQueue(made);
            settle(null); // rule 6: first what was not confirmed, then the join
            join(made);
            if (leaving != Leaving.NO) leave();
        } catch (Exception error) {
            if (!hasConnected && isRefusedLogin(error)) end.completeExceptionally(new ConsumerRefused(reasonOf(error)));
            else over(made, reasonOf(error));
        }
    }

    /** User, password or vhost: that stays so until somebody changes something. */
    private static boolean isRefusedLogin(Throwable error) {
        if (error instanceof AuthenticationFailureException) return true;
        return error.getCause() instanceof ShutdownSignalException told
            && told.getReason() instanceof AMQP.Connection.Close close
            && (close.getReplyCode() == AMQP.NOT_ALLOWED || close.getReplyCode() == AMQP.ACCESS_REFUSED);
    }

    /** RabbitMQ's words, which amqp-client puts into the cause. */
    private static String reasonOf(Throwable error) {
        return (error.getCause() == null ? error : error.getCause()).toString();
    }

    /** The connection is lost, or of no use any more. */
    private void over(Session lost, String problem) {
        if (lost.isOver) return;
        drop(lost);
        if (leaving == Leaving.TO_STOP && me.isSettled()) {
            end.complete(null);
            return;
        }
        if (!problem.equals(lastProblem)) System.err.println(consumerId + ": " + problem + "; trying again");
        lastProblem = problem;
        later(lost.wasWelcomed ? 0 : RETRY_MS, this::connect);
    }

    private void drop(Session lost) {
        lost.isOver = true;
        cancel(lost.timer);
        handling.goesOn(false);
        session = null;
        if (lost.connection != null) lost.connection.abort(1_000);
    }

    private void newQueue(Session in) throws IOException {
        String queue = in.channel.queueDeclare("", false, true, true, null).getQueue();
        in.channel.queueBind(queue, exchange, queue);
        in.queue = queue;
        in.isDeaf = false;
        in.tag = in.channel.basicConsume(queue, true, new DefaultConsumer(in.channel) {
            @Override
            public void handleDelivery(String tag, Envelope envelope, BasicProperties properties, byte[] body) {
                loop.execute(() -> safely(() -> received(in, queue, properties, body)));
            }

            @Override
            public void handleCancel(String tag) {
                loop.execute(() -> over(in, "RabbitMQ cancelled the consumer"));
            }
        });
    }

    /** Rule 4, and after `dispatch.taken`: another queue over the same channel, and a join for it. */
    private void moveToNewQueue(Session in) {
        if (in.isOver) return;
        String former = in.tag;
        try {
            newQueue(in);
            join(in);
            in.channel.basicCancel(former);
        } catch (Exception error) {
            over(in, reasonOf(error));
        }
    }

    private void say(Session in, String type, Map<String, Object> fields, Runnable onConfirm) {
        boolean isHeartbeat = type.equals("heartbeat");
        Map<String, Object> body = new LinkedHashMap<>();
        body.put("type", type);
        body.put("consumer", consumerId);
        body.put("incarnation", me.id);
        body.putAll(fields);
        BasicProperties properties = new BasicProperties.Builder()
            .contentType("application/json").deliveryMode(isHeartbeat ? 1 : 2).userId(user).build();
        byte[] text = Json.write(body).getBytes(StandardCharsets.UTF_8);
        try {
            in.unconfirmed.put(in.channel.getNextPublishSeqNo(), onConfirm);
            in.channel.basicPublish(exchange + ".in", isHeartbeat ? "heartbeat" : "control", true, properties, text);
        } catch (Exception error) {
            over(in, reasonOf(error));
        }
    }

    private void confirmed(Session in, long tag, boolean multiple) {
        if (in.isOver) return; // a message that came back is confirmed as well
        Map<Long, Runnable> tags = in.unconfirmed.headMap(tag, true);
        List<Runnable> acts = multiple ? new ArrayList<>(tags.values()) : List.of(in.unconfirmed.get(tag));
        if (multiple) tags.clear();
        else in.unconfirmed.remove(tag);
        acts.forEach(Runnable::run);
    }

    // --- joining and leaving ---

    private void join(Session in) {
        me.n++;
        unwelcome(in);
        repeat(in, in.wasWelcomed ? in.heartbeatMs : RETRY_MS, () -> {
            List<Object> held = new ArrayList<>();
            me.inHand.values().forEach(message -> held.add(Arrays.asList(message.seq(), message.key, message.id)));
            Map<String, Object> fields = new LinkedHashMap<>();
            fields.put("protocol", 1);
            fields.put("n", me.n);
            fields.put("queue", in.queue);
            fields.put("prefetch", prefetch);
            fields.put("bundle", Bundle.LIMITS);
            fields.put("epoch", me.epoch);
            fields.put("in_hand", held);
            say(in, "join", fields, () -> {});
        });
    }

    private void unwelcome(Session in) {
        in.isWelcome = false;
        cancel(in.timer);
        handling.goesOn(false);
    }

    /** Do it now and every so often, instead of what was repeated before. */
    private void repeat(Session in, long everyMs, Runnable act) {
        in.repeated = act;
        act.run();
        repeatLater(in, everyMs);
    }

    private void repeatLater(Session in, long everyMs) {
        cancel(in.timer);
        if (in.isOver) return;
        in.timer = loop.scheduleAtFixedRate(
            () -> safely(in.repeated), everyMs, everyMs, TimeUnit.MILLISECONDS);
    }

    private void heartbeat(Session in) {
        Map<String, Object> fields = new LinkedHashMap<>(begun());
        fields.put("queue", in.queue);
        fields.put("held", me.inHand.size());
        fields.put("last", me.last);
        fields.put("in_hand", Ranges.of(me.inHand.keySet()));
        say(in, "heartbeat", fields, () -> {});
    }

    private void leave() {
        if (session != null) say(session, "leave", Map.of(), () -> {});
        lookForEnd(TAKEN_MS);
    }

    /** When nothing is left: wait a little for the dispatcher's last word, then end, or begin anew. */
    private void lookForEnd(long waitMs) {
        if (leaving == Leaving.NO || !me.isSettled() || session == null) return;
        Incarnation ending = me;
        Session in = session;
        later(waitMs, () -> {
            if (ending != me || !me.isSettled() || in.isOver) return;
            if (leaving == Leaving.TO_STOP) over(in, "it has left");
            else beginAnew(in);
        });
    }

    private void beginAnew(Session in) {
        renew();
        moveToNewQueue(in);
    }

    /** Everything in hand belongs to others now. */
    private void renew() {
        handling.lose(me.inHand.values());
        me = new Incarnation();
        if (leaving == Leaving.TO_BEGIN_ANEW) leaving = Leaving.NO;
    }

    // --- what comes ---

    private void received(Session in, String queue, BasicProperties properties, byte[] body) {
        if (in.isOver || !queue.equals(in.queue)) return;
        String type = String.valueOf(properties.getType());
        if (Message.isCopy(properties)) copyCame(in, new Message(properties, body));
        else if (type.equals("dispatch.bundle")) bundleCame(in, body);
        else if (type.startsWith("dispatch.")) told(in, type, Json.readObject(new String(body, StandardCharsets.UTF_8)));
    }

    /** Of a bundle that can't be read no copy counts: it is as if it had not come. */
    private void bundleCame(Session in, byte[] bundle) {
        List<Message> copies;
        try {
            copies = Bundle.split(bundle);
        } catch (IOException | RuntimeException error) {
            System.err.println(consumerId + ": a bundle is ignored: " + error);
            return;
        }
        copies.forEach(message -> copyCame(in, message));
    }

    private void copyCame(Session in, Message message) {
        if (in.isOver || in.isDeaf) return;
        switch (me.look(message)) {
            case START -> {
                me.take(message);
                handling.add(message);
            }
            case SETTLE_AGAIN -> {
                me.toSettle.add(message.seq());
                settleSoon();
            }
            case GAP -> missed(in);
            case IGNORE -> { }
        }
    }

    /** A copy got lost: what is missing comes again after a join with a new queue. */
    private void missed(Session in) {
        in.isDeaf = true;
        unwelcome(in);
        long now = System.currentTimeMillis();
        boolean isSecond = now - gapAt < RETRY_MS;
        gapAt = now;
        later(isSecond ? RETRY_MS : 0, () -> moveToNewQueue(in));
    }

    @SuppressWarnings("unchecked")
    private void told(Session in, String type, Map<String, Object> answer) {
        Object incarnation = answer.get("incarnation");
        if (incarnation != null && !incarnation.equals(me.id)) return; // late
        boolean isOfThisJoin = Long.valueOf(me.n).equals(answer.get("n"));
        switch (type) {
            case "dispatch.welcome" -> {
                if (isOfThisJoin) welcomed(in, (Long) answer.get("heartbeat"), (Map<String, Object>) answer.get("retry"));
            }
            case "dispatch.wait" -> {
                if (isOfThisJoin && !in.isWelcome) repeatLater(in, RETRY_MS);
            }
            case "dispatch.rejoin" -> {
                settle(null);
                join(in);
            }
            case "dispatch.taken" -> taken(in);
            case "dispatch.refused" ->
                end.completeExceptionally(new ConsumerRefused(String.valueOf(answer.get("reason"))));
            default -> { }
        }
    }

    private void welcomed(Session in, long heartbeatMs, Map<String, Object> retry) {
        if (in.isWelcome) return;
        in.isWelcome = true;
        in.wasWelcomed = true;
        in.heartbeatMs = heartbeatMs;
        if (retry != null) {
            handling.attempts = (Long) retry.get("attempts");
            handling.backoffMs = (Long) retry.get("backoff");
        }
        repeat(in, heartbeatMs, () -> heartbeat(in));
        if (handling.unsaid() > handling.concurrency) settleSoon();
        handling.goesOn(true);
    }

    private void taken(Session in) {
        if (leaving == Leaving.TO_STOP) {
            if (!me.isSettled()) renew(); // others have its messages
            lookForEnd(0);
        } else {
            beginAnew(in);
        }
    }

    // --- settles ---

    private void ended(Message message, String reason) {
        me.finish(message, reason);
        if (me.isFull() && leaving == Leaving.NO) {
            leaving = Leaving.TO_BEGIN_ANEW;
            leave();
        }
        if (me.inHand.isEmpty() || me.toSettle.size() >= prefetch / 2) settle(null);
        else settleSoon();
    }

    /** Before a message begins: one that others may have died of is named first, and RabbitMQ has to know. */
    private void announce(Message message, Runnable begin) {
        if (handling.unsaid() > handling.concurrency) settleSoon();
        boolean isFirst = message.attempt == 1 || message.calls() > 1;
        if (isFirst || handling.begun.size() > BEGUN_MAX || session == null) {
            begin.run();
            return;
        }
        CompletableFuture<Void> known = new CompletableFuture<>();
        known.thenRun(begin);
        settle(() -> known.complete(null));
        later(ANNOUNCE_MS, () -> known.complete(null));
    }

    private void settleSoon() {
        if (settleTimer == null) settleTimer = later(SETTLE_MS, () -> settle(null));
    }

    private void settle(Runnable onConfirm) {
        cancel(settleTimer);
        settleTimer = null;
        if (session == null) return; // the next connection begins with it
        Map<String, Object> begun = begunSometimes();
        if (me.toSettle.isEmpty() && (begun.isEmpty() || handling.begun.isEmpty())) return;
        Incarnation of = me;
        List<Long> numbers = new ArrayList<>(me.toSettle);
        me.toSettle.clear();
        me.unconfirmed.addAll(numbers);
        List<Long> acked = new ArrayList<>();
        List<Object> failed = new ArrayList<>();
        for (long seq : numbers) {
            if (me.failures.containsKey(seq)) failed.add(me.failures.get(seq));
            else acked.add(seq);
        }
        Map<String, Object> fields = new LinkedHashMap<>(begun);
        fields.put("acked", Ranges.of(acked));
        fields.put("failed", failed);
        say(session, "settle", fields, () -> {
            of.unconfirmed.removeAll(numbers);
            if (onConfirm != null) onConfirm.run();
            if (of == me) lookForEnd(TAKEN_MS);
        });
    }

    private Map<String, Object> begun() {
        List<Long> numbers = new ArrayList<>();
        handling.begun.forEach(message -> numbers.add(message.seq()));
        return Map.of("begun", Ranges.of(numbers), "concurrency", handling.concurrency);
    }

    /** Of many begun messages not every settle says which: that would cost more than it tells. */
    private Map<String, Object> begunSometimes() {
        int count = handling.begun.size();
        long pauseMs = count > BEGUN_MAX ? SETTLE_MS * count / BEGUN_MAX : 0;
        long now = System.currentTimeMillis();
        if (now - begunSaidAt < pauseMs) return Map.of();
        begunSaidAt = now;
        handling.begun.forEach(message -> message.isSaid = true);
        return begun();
    }
}
