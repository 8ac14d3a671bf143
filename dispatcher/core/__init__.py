"""The core decides which message goes to which consumer, and when.

It does no I/O, reads no clock, draws no random number and writes no log. Facts go in, orders come out:

    lane = Lane(options, snapshot, now_ms)        # what a new leader has read from Redis
    effects = lane.step(events, now_ms)           # what happened  ->  what has to be done

An *event* is a fact that an edge reports: originals arrived, a consumer settled, the broker confirmed. The
*effects* of a step have two parts. Its records and table rows go to Redis in one atomic commit. Only then the
edges carry out its orders, one after the other: publish this copy, ack that original. So after a crash the
journal always knows at least as much as the broker does, and the next leader can go on.

Read in this order. It is all that a lane without options needs while no dispatcher or consumer fails:

1. `model`        messages, groups with their backlogs, consumers; which states they have, and the tables of
                  transitions between these.
2. `inbound`      the inbound queues, and the three sources that one has for the delivery pass: the consumers'
                  own groups, groups that nobody owns, messages without a group.
   `drr`          whose turn it is among the inbound queues: deficit weighted round robin.
3. `placement`    who gets what nobody owns yet: the lane's policy, and the pool of consumers with free
                  capacity.
4. `eligibility`  whether a group may go on now. The only place where that is decided.
5. `delivery`     the one pass that dispatches, at the end of each step. Nothing else does.
6. `arrivals`     originals come in, and wait in their group's backlog.
   `settlement`   consumers settle or fail what they got; the original is acked, or goes to the dead queue.
7. `state`        what a lane remembers, and the acts that its parts share: assign a group, release it, list
                  its backlogs, end a message. All of the above call it, so it is as long as `model`: read an
                  act when something calls it.
8. `lane`         a step, from its first event to its effects.

Behind them stand, to look things up: `holds` (all that can keep messages from going, by their codes) and
`explanation` (why a group waits: the same decisions, with their facts); `records`, `orders`, `tables` and
`effects` (what a step yields); `events`, `options`, `bounds`; `feature`, `features` and `signals` (how a
capability plugs in, and which of them a lane has, in which order); `checkpoint`.

How a step runs. Handlers of events only change state. A group's backlog is in at most one list, the list of
its owner or that of groups without an owner; `LaneState.list_backlog` puts it there if `eligibility` finds
nothing that holds it. A list without an eligible head leaves its inbound queue's ring until something changes
for it. So the delivery pass never searches: it asks `drr` for a queue, takes that queue's next source, and
dispatches the first message of the source's next backlog, until nothing is eligible or enough is on its way.
Every decision costs the same whatever the number of groups and consumers.

What a group waits for is one of these: the whole lane is held; the group recovers, changes its owner, or has
a batch out; an operator holds it; its consumer is full or away; no consumer has free capacity; one of its
messages is tried alone, or waits for the one before it. `groups why` shows the very value that stopped it.

Everything else is a capability with a folder of its own. Every lane has `recovery/`, `membership/`,
`operations/`, `operators/` and `views/`; the others a lane has only if its options ask for them. Contracts in
`pyproject.toml` say which folder may import which:

- `recovery/`    what the journal says meets what the broker delivers again; what Redis forgot, consumers say
- `membership/`  who consumes: joins, leaves, deaths, returns, evictions
- `parking/`     backlogs that can't go move to queues of their own, and come back when they can
- `operations/`  purge, move and reroute what waits of a group
- `operators/`   commands, flags, stopped groups, changes of owners
- `forwarding/`  consumers that only read a durable queue and ack (`handover`)
- `optional/`    dedup, sequence numbers, limits, poison messages, idle groups, measured cost, the start gate
- `views/`       what operators see; it changes nothing, and no other folder imports it
"""
