-- Purpose: part of the types that store a log: makes the status of pair `i`. Its lines are a part of the function of a
--   type, after charge_log.lua.
-- KEYS: not read.
-- ARGV: not read.
-- Reply: `status`, without the receipt.
-- Units: instants, windows and waits in microseconds, usage in quota units.
local remaining, next_after, reset_after = quota - used, window, 0
if remaining < 0 then remaining = 0 end
if used > 0 then
  next_after, reset_after = oldest + window - now, newest + window - now
  if next_freed_by then next_after = math.min(next_freed_by, newest) + window - now end
end
local status = pack(STATUS_FORMAT, now, verdict, remaining, retry_after, next_after, reset_after)
