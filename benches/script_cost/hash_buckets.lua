-- Purpose: a comparison with a common approximation. One hash holds 60 buckets per window.
-- KEYS, ARGV, reply and units: those of the crate's check script, for one pair. The wait is correct only for cost 1.
local call, pack, parse = redis.call, struct.pack, struct.unpack
local key = KEYS[1]
local _, quota, cost, window = parse('<I8I4I4I6', ARGV[1])
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local width = window / 60
local current = math.floor(now / width)
local used, oldest, gone = 0, current, {}
local buckets = call('HGETALL', key)
for i = 1, #buckets, 2 do
  local bucket = tonumber(buckets[i])
  if bucket <= current - 60 then
    gone[#gone + 1] = buckets[i]
  else
    used = used + buckets[i + 1]
    if bucket < oldest then oldest = bucket end
  end
end
local leaves = (oldest + 60) * width - now
local verdict, retry = 0, 0
if used + cost > quota then
  verdict, retry = 1, leaves
else
  if #gone > 0 then call('HDEL', key, unpack(gone)) end
  call('HINCRBY', key, current, cost)
  call('PEXPIRE', key, math.ceil((window + width) / 1000))
  used = used + cost
end
return pack('<I8BI4I8I8I8', now, verdict, quota - used, retry, leaves, window)
