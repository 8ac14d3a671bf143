"""The core decides which message goes to which consumer, and when.

It does no I/O, reads no clock, draws no random number and writes no log. Facts go in, orders come out:

    lane = Lane(options, snapshot, now_ms)        # what a new leader has read from Redis
    effects = lane.start(now_ms)                  # a checkpoint, and a probe of every consumer
    effects = lane.step(events, now_ms)           # what happened  ->  what has to be done

Words. A *lane* is one set of inbound queues with its consumers and its options; the dispatcher that runs it
is its *leader*. An *original* is a message in an inbound queue, a *copy* the message that is published to a
consumer's queue. An *edge* is code that talks to RabbitMQ or Redis; the *journal* is the committed records.

An *event* is a fact that an edge reports: originals arrived, a consumer settled, the broker confirmed. The
*effects* of a step have two parts. Its records and table rows go to Redis in one atomic commit. Only then the
edges carry out its orders (`effects.actions`), one after the other: publish this copy, ack that original. So
after a crash the journal always knows at least as much as the broker does, and the next leader can go on.

Read in this order. It is all that a lane without options needs once its consumers have joined, while no
dispatcher or consumer fails. Skip every `for … in signals…` at first: capabilities listen there.

1. `model`        messages, groups with their backlogs, consumers; which states they have, and the tables of
                  transitions between these. What several capabilities remember of a message or a consumer is
                  in their base classes, in `rare_facts` and `consumer_life`; what only one remembers of
                  a consumer is in a class of its own (`ConsumerLife.note`).
2. `inbound`      the inbound queues, and the three kinds of sources that one has for the delivery pass: one
                  for each consumer's own groups, one for groups without an owner, one for messages without a
                  group.
   `drr`          whose turn it is among the inbound queues: deficit weighted round robin.
3. `placement`    who gets groups without an owner, and messages without a group: the lane's policy, and the
                  pool of consumers with free capacity.
4. `eligibility`  whether the lane, a group and its first message may go on now: the only place where that is
                  decided. Whether a consumer can take it is `Consumer.may_receive` and `takes_new`.
5. `delivery`     the pass that dispatches, after the events of a step, and once more if a feature then finds
                  something eligible. Only `optional/poison` dispatches outside of it, through `dispatch`: a
                  message that is tried alone goes out of turn.
6. `arrivals`     originals come in, and wait in their group's backlog.
   `settlement`   consumers settle or fail what they got; the original is acked, or goes to the dead queue.
7. `state`        what a lane remembers, and the acts that its parts share: assign a group, list its
                  backlogs, end a message. `delivery`, `arrivals`, `settlement` and the capabilities call it,
                  so it is long: read an act when something calls it.
8. `lane`         a step, from its first event to its effects.

Behind them stand, to look things up: `consumer_life` (the states of a consumer) and `shared_facts` (what
capabilities keep of the whole lane for each other, and `absent`: recovery's answers about messages whose
originals are not back); `holds` (all that can keep messages from going, by their codes), `explanation` (why
a group waits: the same decisions, with their facts) and `wording`;
`records`, `orders`, `tables`, `entries`, `effects` and `lane_log` (what a step yields); `events`, `options`,
`bounds`, `queue_ids`, `runs`; `settled_originals` (whose acks RabbitMQ may not have processed yet);
`feature`, `features` and `signals` (how a capability plugs in, and which of them a lane has, in which order);
`waiting` (messages that come back to wait, or wait no more, without an arrival or a hand-over);
`ownership` (groups that leave their owner); `notices` (messages to consumers that are about themselves);
`buckets`, `prefetch_window`, `deadlines` and `ignored_settles` (small parts of every lane); `checkpoint`.

How a step runs. Handlers of events change state, and may add records and orders; they dispatch nothing. A
group has a backlog for each inbound queue. A backlog is in at most one source: that of the group's owner,
or of the consumer that it is pinned to, or that of groups without an owner. `LaneState.list_backlog` puts
it there if `eligibility` finds nothing that holds it. A source without an eligible head leaves its inbound
queue's ring (`Inbound.ready`) until something changes for it. So the delivery pass never searches: it asks
`drr` for a queue, takes that queue's next source, and dispatches the first message of the source's next
backlog, until nothing is eligible or too many copies await the broker's confirm. A decision costs hardly
more with more groups and consumers: the logarithm of the pool's levels.

What a group waits for is a member of `HoldKind`: the whole lane is held; the group recovers, changes its
owner, or has a batch out; its window is full; an operator holds or moves it; it is parked; its consumer is
full or away; no consumer has free capacity; one of its messages is tried alone, or waits for the one before
it. The command `groups why` shows the very value that stopped it.

Everything else is a capability, a `Feature`, in a folder. Every lane has `recovery/`, `membership/`,
`operations/`, `operators/` and `views/`, and of `optional/` the poison messages and expiry. The rest of
`optional/`, `parking/` and `forwarding/` act only if the lane's options ask for them. Contracts in
`pyproject.toml` say which folder may import which:

- `recovery/`    what the journal says meets what the broker delivers again; what Redis forgot, consumers say
- `membership/`  who consumes: joins, leaves, deaths, returns, evictions
- `parking/`     backlogs that can't go move to queues of their own, and come back when they can
- `operations/`  purge, move and reroute the waiting messages of a group
- `operators/`   commands, flags, stopped groups, changes of owners
- `forwarding/`  consumers that only read a durable queue and ack (`handover`)
- `optional/`    dedup, sequence numbers, limits, windows, work stealing, poison messages, expiry, idle
                 groups, measured cost, the start gate
- `views/`       what operators see; it changes nothing, and no other folder of the core imports it

A new option of a lane is a field of `options`, a `Feature` in `optional/`, and its place in
`features.make_features`. The feature hears of the lane by `state.signals`, and holds messages by a check in
`state.eligibility` with a `HoldKind` of its own. It tells `state.explanation` the facts and the sentence.
"""
