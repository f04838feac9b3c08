-- Purpose: the first part of each script. Reads the server's clock, once, and names the functions that all parts use.
-- KEYS, ARGV: not read. Reply: none.
-- Units: `now` is the instant of the call in microseconds. `extra_ttl` is added to every time to live, in milliseconds.
local call, parse, pack, sub = redis.call, struct.unpack, struct.pack, string.sub
local time, extra_ttl = call('TIME'), 0
local now = time[1] * 1000000 + time[2]
