"""Operations on the waiting messages of one group: purge, move, reroute.

- `operations`: an operation from its command to its result; its barrier of markers in the inbound queues
- `operation`: the state of one, and its row in Redis
- `transfer`: messages go to the operation's target, one confirmed copy each
- `targets`: where operations send messages; `orders`, `events`: what edges have to do, what they report

May touch: the waiting messages of its group, the flag that holds that group, its own row.
"""
