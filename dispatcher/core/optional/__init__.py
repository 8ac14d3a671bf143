"""Small features, each in one file, with at most one helper beside it. Most are there only if options ask.

- `dedup`: originals that repeat a `message_id` are acked
- `sequence_numbers`: producers' numbers are checked
- `sequence_hold`, which builds on it: messages behind a missing number wait
- `group_limit`: `max_in_flight_per_group` of a `concurrent` lane
- `group_window`: how much of a group may be out, as fast as it is settled
- `work_stealing`: consumers with free capacity take over groups that wait for their owner's
- `poison`: messages that kill their consumers are tried alone; every lane has it
- `expiry`: messages that expire while they wait go to the dead queue; every lane has it
- `idle_groups`: groups at rest lose their owner after a time
- `measured_cost`: messages cost what they take
- `start_gate`: a lane waits for its first consumers

May touch: its own memory. It hears of the spine through `signals`, and holds groups through `eligibility`.
"""
