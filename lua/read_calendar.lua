-- Purpose: part of the types that count calendar windows: reads the value of a pair.
-- KEYS, ARGV: not read. Reply: none.
-- Units: instants, windows and waits in microseconds, usage in quota units.

-- Returns the instant that counts, the usage of the calendar window at this instant and of the one before, whether a
-- charge would be the first in its calendar window, and the generation; nil if nothing is used.
return function(key, window, now, READER)
  local value = call('GET', key)
  if not value then return now, 0, 0, true end
  if #value ~= CALENDAR_SIZE then error('FOREIGNVALUE ' .. key) end
  local generation, last, current, previous = parse(CALENDAR_FORMAT, value)
  -- If the clock is behind the last charge by at most a window, time stands still. If it is behind by more, the value
  -- is foreign and counts as empty.
  if last > now + window then return now, 0, 0, true end
  local at = now
  if last > now then at = last end
  local windows_passed = (at - at % window - last + last % window) / window
  if windows_passed == 0 and current + previous > 0 then return at, current, previous, false, generation end
  if windows_passed == 1 and current > 0 then return at, 0, current, true, generation end
  return at, 0, 0, true
end
