-- Purpose: the refund script. Refunds units to 1 to 8 charges, each where it is stored. A
--   charge that has left its window, or whose generation differs, receives no refund.
-- KEYS: one key per pair.
-- ARGV: [1] the deadline, 8 bytes, and then the pairs, 33 bytes each: the units to refund, the window, the type and its
--   parameter, and the receipt of the charge.
--   For a token, [2] is `s`; settle_token.lua has the others.
-- Reply: the clock reading, as an integer. If the deadline is exceeded, the clock reading as 8 bytes, and nothing has changed.
-- Units: instants and windows in microseconds, refunds in quota units.
--
-- Every pair is read before the first one is written. Refunds are rarer than checks, so these functions capture the
-- locals that they use.
INCLUDE 'clock.lua'
INCLUDE 'refund_log.lua'
INCLUDE 'refund_calendar.lua'
INCLUDE 'refund_tokens.lua'

-- Refunds pair `i` and the pairs after it.
local function refund_from(i)
  if i > #KEYS then return end
  local typed_parameter = parse(TYPE_FORMAT, ARGV[1], CLOCK_SIZE + TYPE_OFFSET + REFUND_SIZE * (i - 1))
  local pair_type = (typed_parameter - typed_parameter % TYPE_UNIT) / TYPE_UNIT
  -- The table of types, with the numbers of types.lua: sliding log, sliding buckets, sliding counter, fixed window, token
  -- bucket.
  if pair_type == 0 then return refund_log(i, refund_from)
  elseif pair_type == 1 then return refund_log(i, refund_from)
  elseif pair_type == 2 then return refund_calendar(i, 2, refund_from)
  elseif pair_type == 3 then return refund_calendar(i, 1, refund_from)
  elseif pair_type == 4 then return refund_tokens(i, refund_from)
  else error('unknown type of a policy: ' .. pair_type) end
end

if now > parse(CLOCK_FORMAT, ARGV[1]) then return pack(CLOCK_FORMAT, now) end
if ARGV[2] == TOKEN then
  INCLUDE 'settle_token.lua'
end
refund_from(1)
return now
