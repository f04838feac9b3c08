-- One check. A denial writes nothing, and so does a check that comes after its deadline.
if now > parse('<I8', ARGV[1], 20 * #KEYS + 1) then return pack('<I8', now) end
local admitted, full, statuses =
  decide(1, true, false, decide, calendar, seek, call, parse, pack, sub, KEYS, ARGV, now, keep)
if admitted and full then return 'full' end
return statuses
