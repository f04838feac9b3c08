-- Purpose: the reset script. Deletes the keys of 1 to 8 pairs.
-- KEYS: one key per pair.
-- ARGV: [1] the deadline, 8 bytes.
-- Reply: the clock reading, as an integer. If the deadline is exceeded, the clock reading as 8 bytes, and nothing has changed.
-- Units: instants in microseconds.
INCLUDE 'clock.lua'
if now > parse(CLOCK_FORMAT, ARGV[1]) then return pack(CLOCK_FORMAT, now) end
call('UNLINK', unpack(KEYS))
return now
