-- The server's clock in microseconds, read once, and how many milliseconds longer than needed a key lives.
local time, keep = redis.call('TIME'), 0
local now = time[1] * 1000000 + time[2]
