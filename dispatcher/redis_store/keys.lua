-- The keys of one lane, in this order in KEYS of every script. They share the hash tag
-- {<prefix>:<lane>}, mostly have no lifetime, and only the lane's leader writes them, through these scripts.
--
-- 1 meta          hash    leader    "<lane epoch> <token>" of who leads; its commits alone are taken
--                         ordinal   number of the last commit; "restoring:<run>" while state is written back
--                         run_id    of the Redis process that is known to hold everything committed, and its
--                                   replication id, which differs when it was a replica meanwhile; absent
--                                   while that is not known
--                         inbounds  JSON list of inbound queue names; the journal has the position (from 0)
-- 2 journal       stream  one entry per commit with records: id <ordinal>-0, field r = blob of codec.py
-- 3 owners        hash    group (bytes) -> version u8, incarnation u64, epoch u64
-- 4 incarnations  hash    number -> JSON of consumer, uuid, queue, n, prefetch, state
-- 5 commands      hash    uuid -> JSON of the recorded result
-- 6 command_order list    uuids, oldest first, at most RESULTS_KEPT_MAX (core/commands.py); the hash has no others
-- 7 flags         hash    what operators have set: "lane", "group:<id>" or "consumer:<id>" -> JSON (core/flags.py)
-- 8 ids           zset    made of message_ids, 16 bytes each, or "v" and a fingerprint -> when they entered the
--                         window (ms); has a lifetime, the window's (core/dedup.py)
-- 9 sequences     hash    id of a group (bytes) -> the last number that its producers gave (core/sequences.py)
--
-- One more, for people only: no script has it, standbys write it, too, and nothing depends on it.
--   replicas      hash    "leaderships" -> JSON of the latest ones, "standby <host:pid>" and "ended <lane epoch>" ->
--                         JSON of what that dispatcher says of itself (service/replicas.py)

-- Why this leader may not write: 'fenced' if another one came after it, else 'gap': Redis lost what it wrote.
local function refusal(leader)
  local held = redis.call('HGET', KEYS[1], 'leader')
  if not held or held == leader then return 'gap' end
  local theirs, ours = tonumber(string.match(held, '^%d+')), tonumber(string.match(leader, '^%d+'))
  if theirs and theirs < ours then return 'gap' end
  return 'fenced'
end

