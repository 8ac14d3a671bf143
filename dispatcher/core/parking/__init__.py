"""Parking: backlogs that can't go move to queues of their own, and come back when they can.

- `policy`: which groups are parked, when, and when they have come back
- `queue`: one parking queue and its members; the routes of groups
- `relocation`: originals move into a parking queue: committed, published in order, confirmed
- `reading`: reads parking queues, and tells originals from copies that count no more
- `scan`: for an operation: has all that is parked of its group been read?
- `reparking`: messages that came back to a parked group, in front of the rest
- `loading`, `journal_replay`: what a new leader takes over
- `parked_entries`: what recovery asks and tells about parked messages
- `display`: what operators see of it
- `orders`, `events`: records, what is ordered of the edges, what they report

May touch: the waiting messages of the groups that it parks, their routes, its own queues.
"""
