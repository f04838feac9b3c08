-- Purpose: the type fixed window: counts a calendar window. Decides pair `i` and the pairs after it.
-- KEYS: keys[i] is the string of pair `i`.
-- ARGV: args[2] is the purpose.
-- Reply: the statuses of pair `i` and of the pairs after it, in order.
-- Units: instants, windows and waits in microseconds, usage in quota units.

-- Decides the pair, as types.lua describes. It has no parameter.
local key, purpose = keys[i], args[2]
local read_calendar = INCLUDE 'read_calendar.lua'
local CALENDAR = read_calendar(key, window, now, READER)
-- The window before does not count.
if is_first then current, previous, generation = 0, 0, nil end
local leaves_at = at - at % window + window
local verdict, retry_after = ADMIT, 0
if cost > 0 and current + cost > quota and not EXCEEDS_QUOTA then
  admitted, verdict = false, NEVER
  if cost <= quota then verdict, retry_after = WAIT, leaves_at - now end
end

INCLUDE 'decide_next.lua'

local receipt = ''
if HAS_RECEIPTS then receipt = NO_CHARGE end
if admitted and not full and cost > 0 then
  current = current + cost
  if current > MAX_CALENDAR_USED then current = MAX_CALENDAR_USED end
  if purpose ~= PEEK then
    generation = generation or sub(args[1], -GENERATION_SIZE)
    local charge_calendar = INCLUDE 'charge_calendar.lua'
    charge_calendar(key, CALENDAR, leaves_at - now, extra_ttl, call, pack)
  end
  if HAS_RECEIPTS then receipt = pack(RECEIPT_FORMAT, generation, at, 0) end
end
local remaining, reset_after = quota - current, 0
if remaining < 0 then remaining = 0 end
local next_after = window
if current + previous > 0 then next_after, reset_after = leaves_at - now, leaves_at - now end
statuses = pack(STATUS_FORMAT, now, verdict, remaining, retry_after, next_after, reset_after) .. receipt .. statuses
