-- One check. A denial writes nothing.
local admitted, full, statuses =
  decide(1, true, false, decide, calendar, seek, call, parse, pack, sub, KEYS, ARGV, now, keep)
if admitted and full then return 'full' end
return statuses
