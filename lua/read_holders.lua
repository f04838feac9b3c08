-- Purpose: part of the type in flight and of the hold script: reads the units that all holders hold of a pair.
-- KEYS, ARGV: not read. Reply: none.
-- Units: instants in microseconds, units in quota units.

-- Returns the units of the other holders, and their entries as they are to be stored; of this holder, its units, nil if
-- it has no entry, the end of its entry, and where its units are stored; and the latest end of all entries. An entry that
-- has ended does not count.
return function(key, hold_time, id, id_high, now, READER)
  local value, held, latest = call('GET', key), 0, 0
  if not value then return held, '', nil, 0, 0, latest end
  if #value % HOLDER_SIZE ~= CLOCK_SIZE then error('FOREIGNVALUE ' .. key) end
  local last = parse(CLOCK_FORMAT, value)
  -- If the clock has gone back, each entry has as much time left as at the last write. If it has gone back by more than a
  -- hold time, the value is foreign: no entry counts longer than two hold times.
  if last > now + hold_time then return held, '', nil, 0, 0, latest end
  local step = math.max(0, last - now)
  local own, own_end, own_offset, others = nil, 0, 0, {}
  for offset = CLOCK_SIZE + 1, #value, HOLDER_SIZE do
    local low, high, ends_at, units = parse(HOLDER_FORMAT, value, offset)
    ends_at = ends_at - step
    if ends_at > now then
      if low == id and high == id_high then
        own, own_end, own_offset = units, ends_at, offset
      elseif units > 0 then
        held = held + units
        local entry = sub(value, offset, offset + HOLDER_SIZE - 1)
        if step > 0 then entry = struct.pack(HOLDER_FORMAT, low, high, ends_at, units) end
        others[#others + 1] = entry
        latest = math.max(latest, ends_at)
      end
    end
  end
  return held, table.concat(others), own, own_end, own_offset, latest
end
