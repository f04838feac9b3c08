-- Purpose: replaces clock.lua in tests. The test sets the clock. Keys live an hour longer, because the server's own
--   clock expires them.
-- KEYS: not read. ARGV: the last argument is the instant, in decimal. Reply: none.
-- Units: as in clock.lua.
local call, parse, pack, sub = redis.call, struct.unpack, struct.pack, string.sub
local now, extra_ttl = tonumber(ARGV[#ARGV]), 3600000
