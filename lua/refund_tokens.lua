-- Purpose: part of the refund script. Refunds units to a token bucket.
-- KEYS: KEYS[i] is the string of pair `i`.
-- ARGV: [1] pair `i` at byte 33 * i - 24. The window is the time in which a full capacity returns.
-- Reply: none.
-- Units: instants and windows in microseconds, refunds in quota units, usage in parts of a quota unit.

-- Refunds pair `i`: reads it, refunds the pairs after it, and then writes it. The units return at the instant of the last
-- charge. The usage at every later instant is the same as if they returned now.
local function refund_tokens(i, refund_from)
  local key = KEYS[i]
  local units, window, typed_parameter, receipt_generation =
    parse(REFUND_FORMAT, ARGV[1], CLOCK_SIZE + 1 + REFUND_SIZE * (i - 1))
  local value = call('GET', key)
  if value and #value ~= TOKENS_SIZE and #value ~= PLAIN_TOKENS_SIZE then error('FOREIGNVALUE ' .. key) end

  refund_from(i + 1)

  -- The form without receipts has nothing to refund.
  if not value or #value ~= TOKENS_SIZE then return end
  local generation, last, used, parts = parse(TOKENS_FORMAT, value)
  if generation ~= receipt_generation or last > now + window then return end
  local left = math.max(0, used - units * parts)
  call('SETRANGE', key, 0, pack(TOKENS_FORMAT, generation, last, left, parts))
  -- Beyond its capacity, a bucket may live for longer than it takes to return. This time is enough if nothing is used.
  if left == 0 and used > window * (typed_parameter % TYPE_UNIT) and last + window > now then
    call('PEXPIRE', key, math.ceil((last + window - now) / 1000) + extra_ttl)
  end
end
