"""Operators' commands for a lane: flags, decisions about stopped groups, changes of owners.

- `commands`: a command is done once; its result is recorded with the commit that did it
- `flags`: operators' settings of a group, and their consequences; `flag_changes` is where it changes
- `flag_commands`: pause, resume, pin, drain; the rows that Redis keeps of them
- `stopped_groups`: a group stops at a failed message until an operator decides (`retry.on_exhausted: stop`)
- `rebalance`, `rebalance_plan`, `reset_owners`, `auto_rebalance`: groups change their owner
- `quiescing`: a rebalance with `pause: lane` holds the lane until everything in flight is settled

May touch: flags, owners (through the acts of `LaneState`), lane holds, the tables of commands and flags.
"""
