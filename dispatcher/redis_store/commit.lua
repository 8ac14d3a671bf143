-- One commit, all or nothing, in one chain per leader.
-- ARGV: 1 leader, 2 ordinal that must be stored, 3 ordinal of this commit, 4 run_id or '' (not known to be
-- complete), 5 journal blob or '', 6 'checkpoint' or '' (older journal entries may go); then, if any table
-- changes, packed fields (u32 length, bytes): 7 owners set, 8 owners forgotten, 9 incarnations set,
-- 10 incarnations forgotten, 11 commands, 12 flags set, 13 flags forgotten, 14 sequences set, 15 sequences forgotten.
-- Then, if anything of the window of ids matters, 16 ids that enter it (u64 ms, u32 length, that many bytes: 16
-- each, one after the other; again), 17 fingerprints of what counts as new all the same (likewise), 18 questions
-- (id, fingerprint; 16 bytes each), 19 now (ms), 20 length of the window (ms), 21 ids kept at most.
-- Returns 'applied' (now or before), {'applied', an answer 1 or 0 for each question}, 'gap' or 'fenced'.
local function applied()
  local asked = ARGV[18] or ''
  if asked == '' then return 'applied' end
  local since, known = tonumber(ARGV[19]) - tonumber(ARGV[20]), {}
  for at = 1, #asked, 32 do
    local entered = tonumber(redis.call('ZSCORE', KEYS[8], string.sub(asked, at, at + 15)) or '')
    local is_known = entered and entered >= since
    if is_known and redis.call('ZSCORE', KEYS[8], 'v' .. string.sub(asked, at + 16, at + 31)) then
      is_known = false
    end
    known[#known + 1] = is_known and '1' or '0'
  end
  return {'applied', table.concat(known)}
end

local meta = redis.call('HMGET', KEYS[1], 'leader', 'ordinal')
if meta[1] ~= ARGV[1] or meta[2] ~= ARGV[2] then
  local stored, own = tonumber(meta[2] or ''), tonumber(ARGV[3])
  if meta[1] == ARGV[1] and stored and own and stored >= own then return applied() end
  return refusal(ARGV[1])
end

-- A full Redis refuses the first command that needs memory, and none after one that went through. The ordinal
-- comes last: if anything else fails half-way (a key of another type), this commit must not count as applied.
local function finish()
  redis.call('HSET', KEYS[1], 'ordinal', ARGV[3])
  if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'run_id', ARGV[4]) end
  return applied()
end

if ARGV[5] ~= '' then redis.call('XADD', KEYS[2], ARGV[3] .. '-0', 'r', ARGV[5]) end
if ARGV[6] ~= '' then redis.call('XTRIM', KEYS[2], 'MINID', ARGV[3] .. '-0') end
if #ARGV == 6 then return finish() end

local function unpacked(packed)
  local fields, count, at = {}, 0, 1
  while at <= #packed do
    count = count + 1
    fields[count], at = struct.unpack('>I4c0', packed, at)
  end
  return fields
end

local function call_in_chunks(command, key, fields)
  for first = 1, #fields, 1000 do -- even, so that no pair is split; far below Lua's stack
    redis.call(command, key, unpack(fields, first, math.min(first + 999, #fields)))
  end
end

call_in_chunks('HSET', KEYS[3], unpacked(ARGV[7]))
call_in_chunks('HDEL', KEYS[3], unpacked(ARGV[8]))
call_in_chunks('HSET', KEYS[4], unpacked(ARGV[9]))
call_in_chunks('HDEL', KEYS[4], unpacked(ARGV[10]))
call_in_chunks('HSET', KEYS[7], unpacked(ARGV[12]))
call_in_chunks('HDEL', KEYS[7], unpacked(ARGV[13]))
call_in_chunks('HSET', KEYS[9], unpacked(ARGV[14]))
call_in_chunks('HDEL', KEYS[9], unpacked(ARGV[15]))

local results = unpacked(ARGV[11])
for position = 1, #results, 2 do
  if redis.call('HSET', KEYS[5], results[position], results[position + 1]) == 1 then
    redis.call('RPUSH', KEYS[6], results[position])
  end
end
while redis.call('LLEN', KEYS[6]) > RESULTS_KEPT_MAX do
  redis.call('HDEL', KEYS[5], redis.call('LPOP', KEYS[6]))
end
if #ARGV == 15 then return finish() end

local function enter(ranges, prefix)
  local at, count = 1, 0
  while at <= #ranges do
    local entered, ids
    entered, ids, at = struct.unpack('>I8I4c0', ranges, at)
    local row = {}
    for first = 1, #ids, 16 do
      row[#row + 1] = string.format('%.0f', entered)
      row[#row + 1] = prefix .. string.sub(ids, first, first + 15)
      if #row == 1000 or first + 16 > #ids then
        redis.call('ZADD', KEYS[8], 'GT', unpack(row)) -- an older one may be over, and still here
        count, row = count + #row / 2, {}
      end
    end
  end
  return count
end

local entered = enter(ARGV[16], '') + enter(ARGV[17], 'v')
-- After a pause very many may be over: a few at a time, so that Redis' other clients go on.
local over = redis.call('ZCOUNT', KEYS[8], '-inf', string.format('(%.0f', tonumber(ARGV[19]) - tonumber(ARGV[20])))
over = math.max(over, redis.call('ZCARD', KEYS[8]) - tonumber(ARGV[21]))
if over > 0 then redis.call('ZREMRANGEBYRANK', KEYS[8], 0, math.min(over, 1000 + 2 * entered) - 1) end
if entered > 0 then redis.call('PEXPIRE', KEYS[8], ARGV[20]) end
return finish()
