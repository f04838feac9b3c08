-- Purpose: part of the refund script. Refunds units to a charge of a calendar period.
-- KEYS: KEYS[i] is the string of pair `i`.
-- ARGV: [1] pair `i` at byte 33 * i - 24.
-- Reply: none.
-- Units: instants in microseconds, refunds in quota units.

-- Refunds pair `i`: reads it, refunds the pairs after it, and then writes it. Each period has a generation of its own.
local function refund_period(i, refund_from)
  local key = KEYS[i]
  local units, _, _, receipt_generation = parse(REFUND_FORMAT, ARGV[1], CLOCK_SIZE + 1 + REFUND_SIZE * (i - 1))
  local value = call('GET', key)
  if value and #value ~= PERIOD_SIZE then error('FOREIGNVALUE ' .. key) end

  refund_from(i + 1)

  if not value then return end
  local generation, last, begin, ends_at, used = parse(PERIOD_FORMAT, value)
  if generation ~= receipt_generation or last > now + ends_at - begin or now >= ends_at then return end
  call('SETRANGE', key, 0, pack(PERIOD_FORMAT, generation, last, begin, ends_at, math.max(0, used - units)))
end
