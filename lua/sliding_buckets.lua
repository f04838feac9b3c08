-- Purpose: the type sliding buckets: a record takes all charges of a bucket, and its instant is the end of the bucket.
--   Decides pair `i` and the pairs after it.
-- KEYS: keys[i] is the LIST of pair `i`.
-- ARGV: args[2] is the purpose; args[4] has, for a lease, the units of pair `i` at byte 4 * i - 3.
-- Reply: the statuses of pair `i` and of the pairs after it, in order.
-- Units: instants, windows and waits in microseconds, usage in quota units.

-- Decides the pair, as types.lua describes. The parameter is the precision: the length of a bucket.
INCLUDE 'read_log.lua'
INCLUDE 'find_waits_log.lua'

INCLUDE 'decide_next.lua'

-- The instant of a bucket is its end.
local precision = parameter
local record_at, receipt, leased = at - at % precision + precision, '', 0
-- A plain charge has no purpose, and skips these comparisons.
if purpose then
  if HAS_RECEIPTS then receipt = NO_CHARGE end
  if EXCEEDS_QUOTA then
    -- Usage saturates. Only an overage can reach this limit.
    cost = math.min(cost, MAX_USED - used)
  elseif purpose == LEASE then
    receipt = NO_LEASE
    if admitted then
      -- As many units as fit beyond the cost, at most those of the request.
      local wanted = parse(UNITS_FORMAT, args[4], UNITS_SIZE * i - (UNITS_SIZE - 1))
      leased = math.max(0, math.min(wanted, quota - used - cost))
      cost = cost + leased
    end
  elseif purpose == LEASE_AHEAD and 2 * precision <= window then
    record_at = record_at + precision
  end
end
-- The charge belongs to the newest bucket: that of this instant, or the next one if a lease ahead has charged it.
local is_joined = used > 0 and newest >= record_at
if is_joined then record_at = newest end
if admitted and not full and cost > 0 then
  INCLUDE 'charge_log.lua'
  if HAS_RECEIPTS then
    receipt = pack(RECEIPT_FORMAT, generation, record_at, 0)
  elseif purpose == LEASE then
    receipt = pack(LEASE_FORMAT, generation, record_at, 0, leased)
  end
end
INCLUDE 'reply_log.lua'
statuses = status .. receipt .. statuses
