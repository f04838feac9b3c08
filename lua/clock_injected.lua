-- For tests: an instant of their own, and keys that stay while they play through hours.
local call, parse, pack, sub = redis.call, struct.unpack, struct.pack, string.sub
local now, keep = tonumber(ARGV[#ARGV]), 3600000
