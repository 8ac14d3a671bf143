-- Empty the lane before its whole state is written back. Until the commit that ends it, nobody may take
-- what is here for complete, and no ordinary commit fits the chain.
-- ARGV: leader, ordinal that ends the restoration, its run (rises with every attempt), inbounds.
-- Returns 'begun', 'applied' (its end was, before, and only the answer got lost), 'gap' (a later run began) or
-- 'fenced'.
local meta = redis.call('HMGET', KEYS[1], 'leader', 'ordinal')
if meta[1] ~= ARGV[1] then
  if refusal(ARGV[1]) == 'fenced' then return 'fenced' end
else
  -- The words of a connection that was given up may arrive late: they must not empty it a second time.
  local stored = meta[2] or ''
  local run = tonumber(string.match(stored, '^restoring:(%d+)$') or '')
  if run and run >= tonumber(ARGV[3]) then return 'gap' end
  if tonumber(stored) and tonumber(stored) >= tonumber(ARGV[2]) then return 'applied' end
end
redis.call('HSET', KEYS[1], 'leader', ARGV[1], 'ordinal', 'restoring:' .. ARGV[3], 'inbounds', ARGV[4])
redis.call('HDEL', KEYS[1], 'run_id')
redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[7], KEYS[9])
return 'begun'
