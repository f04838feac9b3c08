-- For comparison: the usual sliding window, one member of a sorted set for every unit. The same arguments and the
-- same reply as ours, for one pair; its wait is right for a cost of one only.
local call, pack, parse = redis.call, struct.pack, struct.unpack
local key = KEYS[1]
local quota, cost, window = parse('<I4I4I8', ARGV[1])
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
call('ZREMRANGEBYSCORE', key, '-inf', now - window)
local used = call('ZCARD', key)
local verdict, retry, reset = 0, 0, window
if used + cost > quota then
  local oldest = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  verdict, retry = 1, oldest[2] + window - now
else
  for unit = 1, cost do
    call('ZADD', key, now, now .. ':' .. used + unit)
  end
  call('PEXPIRE', key, math.ceil(window / 1000))
  used = used + cost
end
return pack('<BI8BI4I8I8I8', 1, now, verdict, quota - used, retry, window, reset)
