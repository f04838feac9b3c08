-- Purpose: the last part of the check script. Decides one check of 1 to 8 pairs, and charges all pairs or none.
-- KEYS: one key per pair.
-- ARGV: [1] the pairs, 20 bytes each, then the deadline, 8 bytes, and the generation, 7 bytes; [2] the purpose: absent
--   or empty to charge, `r` to reserve, `p` to peek, `o` to charge an overage.
-- Reply: if the deadline is exceeded, the clock reading alone, 8 bytes. If a log is full, the text `full`. Otherwise
--   one status per pair, each followed by a receipt if the purpose is `r`. README.md has the fields.
-- Units: instants in microseconds, costs in quota units.
if now > parse(CLOCK_FORMAT, ARGV[1], PAIR_SIZE * #KEYS + 1) then return pack(CLOCK_FORMAT, now) end
local admitted, full, statuses = decide(1, true, false, CONTEXT)
if admitted and full then return 'full' end
return statuses
