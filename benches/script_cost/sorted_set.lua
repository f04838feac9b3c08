-- For comparison: the usual sliding window, one member of a sorted set for every unit. The same arguments and the
-- same reply as ours, for one pair; its wait is right for a cost of one only.
local call, pack, parse = redis.call, struct.pack, struct.unpack
local key = KEYS[1]
local quota, cost, window = parse('<I4I4I6i6', ARGV[1])
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
