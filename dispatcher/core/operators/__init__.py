"""Operators' commands for a lane: flags, decisions about stopped groups, changes of owners.

- `commands`: a command is done once; its result is recorded with the commit that did it
- `flags`: what operators have set or ordered for a group: how it is kept, shown and changed, and how a pause
  or a pin holds it (stops and operations hold theirs themselves)
- `flag_commands`: pause, resume, pin, drain; the rows that Redis keeps of them
- `stop`, `stopped_groups` (`retry.on_exhausted: stop`): a group stops at a failed message until they decide
- `rebalance`, `rebalance_plan`, `reset_owners`, `auto_rebalance`: groups change their owner
- `quiescing`: a rebalance with `pause: lane` holds the lane until everything in flight is settled

May touch: flags, owners (through `ownership` and `LaneState`), lane holds, the tables of commands and flags.
"""
