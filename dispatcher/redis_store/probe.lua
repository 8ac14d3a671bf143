-- Try every command that the other scripts call, on one key that no lane has, and leave nothing behind.
-- Returns the commands that the user may not call, or may not call on such a key.
local refused = {}
-- How a refusal is said: by Redis 6, by Redis 7.0, and since Redis 7.2.
local refusals = {'NOPERM', 'user executing the script', 'ACL failure in script'}

local function is_refusal(problem)
  for _, words in ipairs(refusals) do
    if string.find(problem, words, 1, true) then return true end
  end
  return false
end

local function may(command, ...)
  local result = redis.pcall(command, KEYS[1], ...)
  local problem = type(result) == 'table' and result.err
  if not problem or not is_refusal(problem) then return true end
  refused[#refused + 1] = command
  return false
end

may('HGET', 'f')
may('HMGET', 'f')
may('HSCAN', '0')
may('HDEL', 'f')
may('LLEN')
may('LRANGE', '0', '0')
may('LPOP')
may('XRANGE', '-', '+')
may('XTRIM', 'MAXLEN', '1')
may('XADD', 'NOMKSTREAM', '1-0', 'r', 'x')
may('ZSCORE', 'm')
may('ZCARD')
may('ZCOUNT', '0', '1')
may('ZREMRANGEBYRANK', '0', '0')
may('ZADD', 'XX', '1', 'm')
may('PEXPIRE', '1000')
if may('UNLINK') then -- these two make the key
  may('HSET', 'f', 'x')
  redis.pcall('UNLINK', KEYS[1])
  may('RPUSH', 'x')
  redis.pcall('UNLINK', KEYS[1])
end
return refused
