"""Bounds of the core: each with its reason."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

#: A broker that is killed forgets up to 32,768 acks of a busy classic queue (its index journal).
PROVEN_PER_INBOUND_MAX: Final = 40_000
#: Copies published and not yet confirmed: enough to keep the broker busy, and bounded.
UNCONFIRMED_MAX: Final = 2_048
UNCONFIRMED_BYTES_MAX: Final = 8 * 1024 * 1024
#: What the core and the edge keep for an original beside its bytes (measured: 730 bytes, and its backlog).
ORIGINAL_BYTES: Final = 1_000
#: Of `look_ahead_bytes` originals may take this part. The rest is for what RabbitMQ has under way when
#: fetching stops, for copies on their way out, and for buffers.
HELD_BYTES_PART: Final = Fraction(5, 8)
#: What may come of an inbound queue while fetching is stopped; none would mean no limit to RabbitMQ.
STOPPED_WINDOW: Final = 1
#: A consumer that dies may have owned very many groups; one commit must stay short.
STALE_OWNERS_PER_STEP: Final = 500
#: Very many groups may have come to rest at once; one commit must stay short.
RELEASED_PER_STEP: Final = 500
#: A lane may own very many groups when all of them are reset; the lane goes on in between.
RESET_PER_STEP: Final = 500
#: Names of consumers told of at once; more, perhaps invented ones, are only counted.
OFFENDERS_MAX: Final = 100
#: A quorum queue drops a message that it has delivered too often, with RabbitMQ 4 at the 21st lost connection
#: by default: a message that waits here after this many is parked, where nothing is counted.
DELIVERIES_MAX: Final = 10
#: The groups of one answer to an operator: it is one message, and is made in one piece.
GROUPS_PER_PAGE_MAX: Final = 1_000
#: A consumer that waits for its id asks again more often than this.
WAITS_FOR_ID_MS: Final = 10_000
#: Acks that are kept back for less time are nothing to tell operators.
UNACKED_TOLD_MS: Final = 1_000
#: Sequence and epoch counters begin at lane epoch × 2^20. A lane epoch is larger than all before and at least
#: the time in seconds, so the counters never go back: not over a take-over in the same second, and not even
#: if Redis forgets everything.
COUNTER_SHIFT: Final = 20
#: A number of a lane epoch that is so far ahead of ours (four years of seconds) was made up. Whoever believed
#: it would soon be out of numbers that JSON holds exactly.
LANE_EPOCHS_AHEAD_MAX: Final = 2**27
#: Later than any clock will say.
NEVER_MS: Final = 1 << 62
