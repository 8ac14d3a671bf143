"""A consumer with nothing but pika, written from docs/protocol.md alone: URL LANE CONSUMER_ID."""

import base64
import json
import sys
import time
import uuid

import pika
from pika.adapters.utils.connection_workflow import AMQPConnectorException


class BareConsumer:
    def __init__(self, url, lane, consumer):
        self.url, self.exchange, self.consumer = url, f"dispatch.{lane}", consumer
        self.become_new()

    def become_new(self):
        self.incarnation, self.n, self.beat_s = str(uuid.uuid4()), 0, 1.0
        self.in_hand, self.outcomes, self.groups, self.to_settle = {}, {}, {}, []

    def handle(self, body):
        print(body.decode(), flush=True)
        return "it is bad" if body.startswith(b"bad") else None

    def run_forever(self):
        while True:
            try:
                self.connect()
                while not self.needs_queue:
                    self.turn()
                self.connection.close()  # a new connection makes a new queue
            except (pika.exceptions.AMQPError, AMQPConnectorException):  # or a message came back
                time.sleep(0.5)  # sleeps: before the next attempt to connect

    def connect(self):
        self.connection = pika.BlockingConnection(pika.URLParameters(self.url))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.channel.add_on_cancel_callback(lambda _: setattr(self, "needs_queue", True))
        self.queue = self.channel.queue_declare("", exclusive=True, auto_delete=True).method.queue
        self.channel.queue_bind(self.queue, self.exchange, self.queue)
        self.channel.basic_consume(self.queue, self.received, auto_ack=True)
        self.n, self.welcomed, self.due_at, self.needs_queue = self.n + 1, False, 0, False

    def turn(self):
        if self.to_settle:  # what no confirm came for is still there after a reconnect
            ended = [(seq, self.outcomes[seq]) for seq in self.to_settle]
            failed = [{"seq": seq, "reason": reason, "attempts": 1} for seq, reason in ended if reason]
            self.say("settle", acked=[[seq, seq] for seq, reason in ended if not reason], failed=failed)
            self.to_settle = []
        if time.monotonic() >= self.due_at:
            self.due_at = time.monotonic() + self.beat_s
            if self.welcomed:
                last = max([*self.outcomes, *self.in_hand], default=0)
                held = {"held": len(self.in_hand), "in_hand": [[seq, seq] for seq in self.in_hand]}
                self.say("heartbeat", queue=self.queue, last=last, **held)
            else:
                held = [entry for entry, _ in self.in_hand.values()]
                self.say("join", protocol=1, n=self.n, queue=self.queue, prefetch=50, in_hand=held)
        self.connection.process_data_events(time_limit=0 if self.in_hand else 0.05)
        if self.in_hand and self.welcomed:
            seq = min(self.in_hand)
            self.outcomes[seq] = self.handle(self.in_hand.pop(seq)[1])
            self.to_settle.append(seq)

    def say(self, kind, **fields):
        body = {"type": kind, "consumer": self.consumer, "incarnation": self.incarnation, **fields}
        if kind != "join":
            body |= {"begun": [], "concurrency": 1}  # it says nothing while it processes a message
        key, mode = ("heartbeat", 1) if kind == "heartbeat" else ("control", 2)
        properties = pika.BasicProperties(delivery_mode=mode)
        self.channel.basic_publish(self.exchange + ".in", key, json.dumps(body), properties, mandatory=True)

    def received(self, channel, method, properties, body):
        get = (properties.headers or {}).get
        seq, group, number, epoch = (get(f"x-dispatch-{n}") for n in ("seq", "group", "group-seq", "epoch"))
        if seq is None:
            self.told(properties.type or "", json.loads(body or b"{}"))
        elif seq in self.outcomes:
            self.to_settle.append(seq)
        elif seq not in self.in_hand and not self.needs_queue:
            former, last = self.groups.get(group, (0, 0))
            if not number or (epoch, number) == (former, last + 1) or (epoch > former and number == 1):
                self.groups[group] = epoch, number
                raw = group.encode() if isinstance(group, str) else group  # pika decodes UTF-8
                coded = raw and base64.b64encode(raw).decode()
                self.in_hand[seq] = ([seq, coded, get("x-dispatch-id")], body)
            else:
                self.needs_queue = True  # a copy got lost

    def told(self, kind, answer):
        if kind == "dispatch.welcome" and (answer["incarnation"], answer["n"]) == (self.incarnation, self.n):
            self.welcomed, self.beat_s = True, answer["heartbeat"] / 1000
        elif kind == "dispatch.taken" and answer["incarnation"] == self.incarnation:
            self.become_new()
            self.needs_queue = True
        elif kind == "dispatch.rejoin":
            self.n, self.welcomed, self.due_at = self.n + 1, False, 0


if __name__ == "__main__":
    BareConsumer(*sys.argv[1:4]).run_forever()
