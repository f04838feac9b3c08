-- Purpose: part of the types that count calendar windows: stores the value of a pair.
-- KEYS, ARGV: not read. Reply: none.
-- Units: instants, windows and waits in microseconds, usage in quota units.

-- Stores a value whose charges leave in `leaves_in` microseconds.
return function(key, CALENDAR, leaves_in, extra_ttl, call, pack)
  local value = pack(CALENDAR_FORMAT, generation, at, current, previous)
  if is_first then
    -- All charges of a calendar window leave at the same instant. So the first one sets the time to live.
    call('SET', key, value, 'PX', math.ceil(leaves_in / 1000) + extra_ttl)
  else
    call('SETRANGE', key, '0', value)
  end
end
