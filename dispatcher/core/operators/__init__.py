"""What operators order of a lane: flags, decisions about stopped groups, changes of owners."""
