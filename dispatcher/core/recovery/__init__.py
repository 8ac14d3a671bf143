"""Recovery: entries of the journal are matched with the originals that the broker delivers again.

- `journal_replay`: from the journal's records to the entries that are still open; parking reads its own there
- `matching`: redelivered originals are matched with open and settled entries
- `elsewhere`: what recovery asks and tells about originals in other queues than the inbound ones
- `expected`: what one inbound queue may still deliver again, and the window that this needs
- `adopted`: messages that only their consumer told us of
- `resending`: copies that are published once more
- `groups`: when a group goes on after a recovery, and with whom
- `pending_redeliveries`: messages that no consumer has, and whose originals are still to come
- `lost_originals`: in flight, and the original will not come back
- `stale_entries`: entries that no consumer has a copy of, and that take capacity
- `consumer_reports`: what consumers say, where Redis may have forgotten it
- `copies`: which of its copies a consumer has, as it has said

May touch: open entries and what they stand for (consumers' messages in flight, groups that recover).
"""
