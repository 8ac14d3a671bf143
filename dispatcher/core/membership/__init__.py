"""The consumers: joins, leaves, deaths and returns of incarnations.

- `membership`: the life of an incarnation, from its join to its end
- `liveness`: pings, missing heartbeats, queues that are gone or full
- `revocation`: messages and groups of an ended incarnation go back, in order
- `evictions`, `ack_timeout`: incarnations that are ended, by command or because they don't settle in time;
  what an end says of the messages that its incarnation had
- `rows`: what Redis keeps of an incarnation, and who ended it
- `stale_owners`: rows that name an ended incarnation as a group's owner
- `identities`: whose words count for an incarnation, with `strict_identity`
- `lost_copies`: copies that a consumer should have and, by its heartbeats, does not
- `refused_publishes`: copies that RabbitMQ can't be made to take

May touch: consumers and their states, what they have in flight, and the owners of their groups.
"""
