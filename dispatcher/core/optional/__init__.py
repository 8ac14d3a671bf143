"""Features that a lane has only where its options ask for them; each in one file, and none knows another.

- `dedup` (`first_entries`): originals that repeat a `message_id` are acked
- `sequence_numbers`, `sequence_hold`: producers' numbers are checked; what follows a missing one waits
- `group_limit`: `max_in_flight_per_group` of a `concurrent` lane
- `group_window`: how much of a group may be out, as fast as it is settled
- `work_stealing`: who has free capacity takes groups over that wait for their owner's
- `poison`: messages that kill their consumers are tried alone
- `idle_groups`: groups at rest lose their owner after a time
- `measured_cost`: messages cost what they take
- `start_gate`: a lane waits for its first consumers

May touch: its own memory. It hears of the spine through `signals`, and holds groups through `eligibility`.
"""
