-- On a new connection: does Redis still hold all that it said it had applied?
-- ARGV: leader, ordinal of the last commit known to be applied, run_id of the connection before, and of this.
-- Returns 'applied', 'gap' or 'fenced'.
local meta = redis.call('HMGET', KEYS[1], 'leader', 'ordinal', 'run_id')
local stored = tonumber(meta[2] or '')
if meta[1] ~= ARGV[1] or not stored or stored < tonumber(ARGV[2]) then return refusal(ARGV[1]) end
-- Nothing is missing, so what was complete under the old process is complete under this one.
if meta[3] == ARGV[3] and ARGV[3] ~= ARGV[4] then redis.call('HSET', KEYS[1], 'run_id', ARGV[4]) end
return 'applied'
