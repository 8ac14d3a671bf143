"""The core decides which message goes to which consumer, and when.

It does no I/O, reads no clock, draws no random number and writes no log. Facts go in, orders come out:

    lane = Lane(options, snapshot, now_ms)        # what a new leader has read from Redis
    effects = lane.start(now_ms)                  # a checkpoint, and a ping to every consumer's queue
    effects = lane.step(events, now_ms)           # what happened  ->  what has to be done

Words. A *lane* is one set of inbound queues with its consumers and its options; the dispatcher that runs it
is its *leader*. An *original* is a message in an inbound queue, a *copy* the message that is published to a
consumer's queue. A consumer *settles* a copy when it has processed it; then the original can be acked. One
life of a consumer, from its join to its end, is an *incarnation*. `seq` numbers the copies of an incarnation,
`group_seq` those of a group, from 1 in each *epoch* of the group. An *edge* is code that talks to RabbitMQ or
Redis. The *journal* is the committed records; an *open entry* is that of a message that has not ended. A
*feature* is one capability of a lane, the *spine* what all lanes need. docs/glossary.md has all words. Marks
such as O-3 are clauses of docs/semantics.md, those such as D13 rows of docs/features.md.

An *event* is a fact that an edge reports: originals arrived, a consumer settled, the broker confirmed. The
*effects* of a step have two parts. Its records and table rows go to Redis in one atomic commit. Only then the
edges carry out its orders (`effects.actions`), one after the other: publish this copy, ack that original. So
after a crash the journal always knows at least as much as the broker does, and the next leader can go on.

Read in this order. It is all that a lane with bare `LaneOptions` and the policy `exclusive` needs once its
consumers have joined, while no dispatcher or consumer fails and every message can be processed. (The service
adds windows of groups, work stealing and parking to a lane whose configuration says nothing of them.) Skip
every `for … in signals…` at first: features listen there.

1. `model`        messages, groups with their backlogs, consumers; which states they have, and the tables of
                  transitions between these. What several capabilities remember of a message, a group or a
                  consumer is in their base classes, in `rare_facts` and `consumer_life`; what only one
                  remembers of a consumer is in a class of its own (`ConsumerLife.note`).
2. `placement`    the pool of consumers with free capacity, which picks one for a group without an owner or
                  a message without a group. (`options.Policy` says what the flags of a policy mean.)
3. `inbound`      the inbound queues, and what each offers to the delivery pass: a source for the groups of
                  each consumer (that class is in `model`), one for groups without an owner, one for messages
                  without a group.
   `drr`          whose turn it is among the inbound queues: deficit weighted round robin.
4. `eligibility`  whether the lane, a group and its first message may go on now. Whether a consumer can take
                  it is `Consumer.may_receive` and `takes_new`.
5. `state`        what a lane remembers, and the acts that its parts share. Read `list_backlog`,
                  `relist_backlogs` and `assign` now, and the others when something calls them.
6. `arrivals`     originals come in, and wait in their group's backlog.
7. `delivery`     the pass that dispatches, after the events of a step, and once more if a feature then finds
                  something eligible. Only `optional/poison` dispatches outside of it, through `dispatch`: a
                  message that is tried alone goes out of turn.
8. `settlement`   consumers settle what they got, and the original is acked; or they fail it.
9. `lane`         a step, from its first event to its effects.

Behind them stand, to look things up: `ownership` (how a group leaves its owner: under `sequenced` when
nothing of it is in flight, under `exclusive` when a message closes it, or a capability says so) and
`dead_letters` (what becomes of messages that can't be processed); `consumer_life` (the states of a consumer)
and `shared_facts` (what capabilities keep of the whole lane for each other, and `absent`: recovery's answers
about messages whose originals are not back); `holds` (all that can keep messages from going, by their codes),
`explanation` (why a group waits: the same decisions, with their facts) and `wording`; `records`, `orders`,
`tables`, `entries`, `effects` and `lane_log` (what a step yields); `events`, `options` (and what each policy
means), `bounds`, `queue_ids`, `runs`; `settled_originals` (whose acks RabbitMQ may not have processed yet);
`feature`, `features` and `signals` (how a capability plugs in, and which of them a lane has, in which order);
`waiting` (messages that come back to wait, or wait no more, without an arrival or a hand-over); `notices`
(messages to consumers that are about themselves); `buckets`, `prefetch_window`, `deadlines` and
`ignored_settles` (small parts of every lane); `checkpoint`.

How a step runs. Handlers of events change state, and may add records and orders; they dispatch nothing. A
group has a backlog for each inbound queue. A backlog is in at most one source: that of the group's owner,
or of the consumer that it is pinned to, or that of groups without an owner. `LaneState.list_backlog` puts
it there if `eligibility` finds nothing that holds it. A source without an eligible head leaves its inbound
queue's ring (`Inbound.ring`) until something changes for it. So the delivery pass never searches: it asks
`drr` for a queue, takes that queue's next source, and dispatches the first message of the source's next
backlog, until nothing is eligible or too many copies await the broker's confirm. A decision costs hardly
more with more groups and consumers: the logarithm of the pool's levels.

What a group waits for is a member of `HoldKind`: the whole lane is held; the group recovers, changes its
owner, or has a batch out; its window is full; an operator holds or moves it; it is parked; its consumer is
full or away; no consumer has free capacity; one of its messages is tried alone, or waits for the one before
it. Nothing stores the reason: the command `groups why` asks `eligibility` the same questions again, or the
consumer, if the group's backlog is listed.

Everything else is a feature, in a folder. Every lane has `recovery/`, `membership/`,
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
`features.make_features`. The feature hears of the lane by `state.signals`. If it holds messages, it has a
`HoldKind` of its own, adds a check in one of the places that `eligibility` names, and tells
`state.explanation` the facts and the sentence. When its answer changes it relists the backlogs concerned; if
time changes it, it says when in `next_deadline_ms`. `optional/sequence_hold` is an example.
"""
