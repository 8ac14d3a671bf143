-- Applies one change to the table if nothing speaks against it; the answer is one word.
--
-- KEYS[1] hash   rows      key → value; no field: no row
-- KEYS[2] hash   epochs    group → the newest epoch that wrote to it
-- KEYS[3] hash   numbers   group → number of the last change applied to it
-- ARGV    group, epoch, number, key, old value, new value ("": no row)
local group, epoch, number = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local newest = redis.call('HGET', KEYS[2], group)
if newest and tonumber(newest) > epoch then
  return 'stale' -- whoever writes with an older epoch has lost the group since
end
local last = redis.call('HGET', KEYS[3], group)
if last and tonumber(last) >= number then
  return 'again' -- its first consumer died between applying it and settling it
end
if (redis.call('HGET', KEYS[1], ARGV[4]) or '') ~= ARGV[5] then
  return 'conflict'
end
if ARGV[6] == '' then
  redis.call('HDEL', KEYS[1], ARGV[4])
else
  redis.call('HSET', KEYS[1], ARGV[4], ARGV[6])
end
redis.call('HSET', KEYS[2], group, ARGV[2])
redis.call('HSET', KEYS[3], group, ARGV[3])
return 'applied'
