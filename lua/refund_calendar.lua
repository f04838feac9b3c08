-- Purpose: part of the refund script. Refunds units to a charge of a calendar window.
-- KEYS: KEYS[i] is the string of pair `i`.
-- ARGV: [1] pair `i` at byte 33 * i - 24.
-- Reply: none.
-- Units: instants and windows in microseconds, refunds in quota units.

-- Refunds pair `i`, whose charges count in this number of calendar windows: reads it, refunds the pairs after it, and then
-- writes it.
local function refund_calendar(i, refund_from, windows)
  local key = KEYS[i]
  local units, window, _, receipt_generation, at =
    parse(REFUND_FORMAT, ARGV[1], CLOCK_SIZE + 1 + REFUND_SIZE * (i - 1))
  local value = call('GET', key)
  if value and #value ~= CALENDAR_SIZE then error('FOREIGNVALUE ' .. key) end

  refund_from(i + 1)

  if not value then return end
  local generation, last, current, previous = parse(CALENDAR_FORMAT, value)
  local leaves_at = at - at % window + windows * window
  if generation ~= receipt_generation or last > now + window or leaves_at <= math.max(now, last) then return end
  if at - at % window == last - last % window then
    current = math.max(0, current - units)
  else
    previous = math.max(0, previous - units)
  end
  call('SETRANGE', key, 0, pack(CALENDAR_FORMAT, generation, last, current, previous))
  -- The time to live of a counter may exceed a window. A window is enough if nothing is used.
  if windows > 1 and current + previous == 0 and last - last % window + window > now then
    call('PEXPIRE', key, math.ceil((math.max(now, last) + window - now) / 1000) + extra_ttl)
  end
end
