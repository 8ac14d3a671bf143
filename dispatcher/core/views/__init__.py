"""The operators' view of a lane, as plain values. Nothing here changes the lane.

No other folder of the core imports it. The list of features does, for `hot_group`.

- `views`: status, rows of groups and consumers, why a group waits
- `blocked_reason`: why a group waits, in a sentence
- `group_listing`: lists groups in parts, so that the lane goes on in between
- `group_depth`: how much of a group waits or is out, and since when
- `group_states`: what a listing may be limited to
- `hot_group`: the group with most of the incoming messages
"""
