-- Purpose: part of the refund script. The refund of a type whose pairs are never charged.
-- KEYS, ARGV: not read. Reply: none.
-- Units: none.

-- Refunds the pairs after pair `i`.
local function refund_nothing(i, refund_from)
  return refund_from(i + 1)
end
