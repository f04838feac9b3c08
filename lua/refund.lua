-- Purpose: the refund script. Refunds units to 1 to 8 charges, each where it is stored. A
--   charge that has left its window, or whose generation differs, receives no refund.
-- KEYS: one key per pair.
-- ARGV: [1] the deadline, 8 bytes, and then the pairs, 33 bytes each: the units to refund, the window, the type and its
--   parameter, and the receipt of the charge.
--   For a token, [2] is `s`; settle_token.lua has the others.
-- Reply: the clock reading, as an integer. If the deadline is exceeded, the clock reading as 8 bytes, and nothing has changed.
-- Units: instants and windows in microseconds, refunds in quota units.
--
-- Every pair is read before the first one is written. The loader repeats the lines of a type for each type. Refunds are
-- rarer than checks, so these functions capture the locals that they use.
INCLUDE 'clock.lua'
INCLUDE 'REFUND_FILE'

-- Refunds pair `i` and the pairs after it.
local function refund_from(i)
  if i > #KEYS then return end
  local typed_parameter = parse(TYPE_FORMAT, ARGV[1], CLOCK_SIZE + TYPE_OFFSET + REFUND_SIZE * (i - 1))
  local pair_type = (typed_parameter - typed_parameter % TYPE_UNIT) / TYPE_UNIT
  if pair_type == TYPE_NUMBER then return REFUND_FUNCTION(i, refund_from, REFUND_WINDOWS) end
  error('unknown type of a policy: ' .. pair_type)
end

if now > parse(CLOCK_FORMAT, ARGV[1]) then return pack(CLOCK_FORMAT, now) end
if ARGV[2] == TOKEN then
  INCLUDE 'settle_token.lua'
end
refund_from(1)
return now
