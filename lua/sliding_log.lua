-- Purpose: the type sliding log: a charge is a record of its own, and counts until it has left the window. Decides
--   pair `i` and the pairs after it.
-- KEYS: keys[i] is the LIST of pair `i`.
-- ARGV: args[2] is the purpose.
-- Reply: the statuses of pair `i` and of the pairs after it, in order.
-- Units: instants, windows and waits in microseconds, usage in quota units.

-- Decides the pair, as types.lua describes. A reservation needs the ordinal of its record.
INCLUDE 'read_log.lua'
INCLUDE 'find_waits_log.lua'

-- The number of a reservation among the records of its instant. It may need a search, so it comes before any write.
local ordinal = 0
if HAS_RECEIPTS and used > 0 and newest == at then
  local same_instant = first
  if oldest < at then
    local find_record = INCLUDE 'find_record.lua'
    same_instant = find_record(READER, LOG, first + 1, count, count - 1, at, ANY_UNITS)
  end
  ordinal = count - same_instant
end

INCLUDE 'decide_next.lua'

local record_at, is_joined, receipt = at, false, ''
if HAS_RECEIPTS then receipt = NO_CHARGE end
-- Usage saturates. Only an overage can reach this limit.
if EXCEEDS_QUOTA then cost = math.min(cost, MAX_USED - used) end
if admitted and not full and cost > 0 then
  INCLUDE 'charge_log.lua'
  if HAS_RECEIPTS then receipt = pack(RECEIPT_FORMAT, generation, at, ordinal) end
end
INCLUDE 'reply_log.lua'
statuses = status .. receipt .. statuses
