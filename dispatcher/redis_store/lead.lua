-- Take the lead: raise the lane epoch, so that every commit of a former leader is refused from here on.
-- ARGV: unix seconds, token of the new leader, names of its inbound queues.
-- Returns: lane epoch, ordinal, run_id or '', inbounds.
local meta = redis.call('HMGET', KEYS[1], 'leader', 'ordinal', 'run_id', 'inbounds')
local before = tonumber(string.match(meta[1] or '', '^%d+') or '') or 0
local epoch = string.format('%.0f', math.max(before + 1, tonumber(ARGV[1])))
local ordinal, names = tonumber(meta[2] or ''), {}
if ordinal and meta[4] then
  names = cjson.decode(meta[4])
end

local known = {}
for _, name in ipairs(names) do known[name] = true end
for position = 3, #ARGV do
  if not known[ARGV[position]] then table.insert(names, ARGV[position]) end
end
local inbounds = cjson.encode(names)
redis.call('HSET', KEYS[1], 'leader', epoch .. ' ' .. ARGV[2], 'inbounds', inbounds)

if not ordinal then
  -- Nothing here, or a restoration was cut off: a journal without its table of names says nothing.
  ordinal = 0
  redis.call('HSET', KEYS[1], 'ordinal', ordinal)
  redis.call('HDEL', KEYS[1], 'run_id')
  -- Nor do ids: what they stand for may come back, and nothing would say what became of it.
  redis.call('UNLINK', KEYS[2], KEYS[8], KEYS[9])
  return {epoch, '0', '', inbounds}
end
return {epoch, string.format('%.0f', ordinal), meta[3] or '', inbounds}
