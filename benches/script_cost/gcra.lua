-- Purpose: a comparison with GCRA, a token bucket. One string holds the theoretical arrival time of the next request.
-- KEYS, ARGV, reply and units: those of the crate's check script, for one pair.
local call, pack, parse = redis.call, struct.pack, struct.unpack
local key = KEYS[1]
local _, quota, cost, window = parse('<I8I4I4I6', ARGV[1])
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local interval = window / quota
local arrival = now
local stored = call('GET', key)
if stored then
  arrival = parse('<d', stored)
  if arrival < now then arrival = now end
end
local verdict, retry = 0, 0
local next_arrival = arrival + interval * cost
if next_arrival - window > now then
  verdict, retry = 1, next_arrival - window - now
else
  arrival = next_arrival
  call('SET', key, pack('<d', arrival), 'PX', math.ceil((arrival - now) / 1000))
end
local left = (window - (arrival - now)) / interval
return pack('<I8BI4I8I8I8', now, verdict, left, retry, interval, arrival - now)
