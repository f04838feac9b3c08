-- The server's clock in microseconds, read once, and how many milliseconds longer than needed a key lives.
local call, parse, pack, sub = redis.call, struct.unpack, struct.pack, string.sub
local time, keep = call('TIME'), 0
local now = time[1] * 1000000 + time[2]
