-- Purpose: a comparison with a common sliding window. One sorted set holds a member per unit.
-- KEYS, ARGV, reply and units: those of the crate's check script, for one pair. The wait is correct only for cost 1.
local call, pack, parse = redis.call, struct.pack, struct.unpack
local key = KEYS[1]
local _, quota, cost, window = parse('<I8I4I4I6', ARGV[1])
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
call('ZREMRANGEBYSCORE', key, '-inf', now - window)
local used = call('ZCARD', key)
local oldest = call('ZRANGE', key, '0', '0', 'WITHSCORES')[2] or now
local verdict, retry = 0, 0
if used + cost > quota then
  verdict, retry = 1, oldest + window - now
else
  for unit = 1, cost do
    call('ZADD', key, now, time[1] .. time[2] .. ':' .. used + unit)
  end
  call('PEXPIRE', key, math.ceil(window / 1000))
  used = used + cost
end
return pack('<I8BI4I8I8I8', now, verdict, quota - used, retry, oldest + window - now, window)
