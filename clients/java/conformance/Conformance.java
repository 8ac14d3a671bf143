import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import messagegroups.GroupConsumer;
import messagegroups.Json;
import messagegroups.Message;
import messagegroups.RejectMessage;

/** The program that `dispatcher conformance` drives: docs/protocol.md has the lines that go in and out. */
public final class Conformance {
    private static final Map<Long, CompletableFuture<Map<String, Object>>> waiting = new ConcurrentHashMap<>();
    private static final AtomicLong calls = new AtomicLong();
    private static GroupConsumer consumer;

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String text = lines.readLine(); text != null; text = lines.readLine()) {
            Map<String, Object> line = Json.readObject(text);
            switch ((String) line.get("type")) {
                case "start" -> start(line);
                case "stop" -> consumer.stop();
                default -> {
                    CompletableFuture<Map<String, Object>> end = waiting.remove((Long) line.get("id"));
                    if (end != null) end.complete(line);
                }
            }
        }
        Runtime.getRuntime().halt(1); // nobody drives it any more
    }

    private static void start(Map<String, Object> line) {
        consumer = new GroupConsumer(
            (String) line.get("url"), (String) line.get("lane"), (String) line.get("consumer"),
            ((Long) line.get("prefetch")).intValue(), (String) line.get("prefix"));
        new Thread(() -> {
            try {
                consumer.run(Conformance::handle, ((Long) line.get("concurrency")).intValue());
                Runtime.getRuntime().halt(0);
            } catch (Exception error) {
                error.printStackTrace();
                Runtime.getRuntime().halt(2);
            }
        }).start();
    }

    private static void handle(Message message) throws Exception {
        long id = calls.incrementAndGet();
        CompletableFuture<Map<String, Object>> ended = new CompletableFuture<>();
        waiting.put(id, ended);
        Map<String, Object> begin = new LinkedHashMap<>();
        begin.put("type", "begin");
        begin.put("id", id);
        begin.put("seq", message.seq());
        begin.put("group", message.group == null ? null : java.util.Base64.getEncoder().encodeToString(message.group));
        begin.put("group_seq", message.groupSeq);
        begin.put("epoch", message.epoch);
        begin.put("attempt", message.attempt);
        begin.put("call", message.calls());
        begin.put("body", new String(message.body, StandardCharsets.UTF_8));
        write(begin);
        try {
            Map<String, Object> end = ended.get();
            if ("reject".equals(end.get("outcome"))) throw new RejectMessage((String) end.get("reason"));
            if ("raise".equals(end.get("outcome"))) throw new RuntimeException((String) end.get("reason"));
        } catch (InterruptedException lost) {
            waiting.remove(id);
            write(Map.of("type", "lost", "id", id));
        }
    }

    private static synchronized void write(Map<String, Object> line) {
        System.out.println(Json.write(line));
        System.out.flush();
    }
}
