-- Purpose: part of the type in flight and of the hold script: reads the units that all holders hold of a pair.
-- KEYS, ARGV: not read. Reply: none.
-- Units: instants in microseconds, units in quota units.

-- Returns the units of the other holders and the latest end of their entries; of this holder, its units, nil if it has no
-- entry, the end of its entry, and where the entry is; and the value, nil if nothing is held, with how far the clock has
-- gone back since it was written. An entry that has ended does not count.
return function(key, hold_time, id, id_high, now, READER)
  local value, held, latest = call('GET', key), 0, 0
  if not value then return held, latest, nil, 0, 0, nil, 0 end
  if #value % HOLDER_SIZE ~= CLOCK_SIZE then error('FOREIGNVALUE ' .. key) end
  local step, own, own_end, own_offset = parse(CLOCK_FORMAT, value) - now, nil, 0, 0
  -- If the clock has gone back, each entry has as much time left as at the last write. If it has gone back by more than a
  -- hold time, the value is foreign: no entry counts longer than two hold times. Another holder may have a longer hold time,
  -- which is at least what an entry had left.
  if step > hold_time then
    local longest = 0
    for offset = CLOCK_SIZE + 1, #value, HOLDER_SIZE do
      local _, _, ends_at = parse(HOLDER_FORMAT, value, offset)
      longest = math.max(longest, ends_at - now - step)
    end
    if step > longest then return held, latest, nil, 0, 0, nil, 0 end
  end
  if step < 0 then step = 0 end
  for offset = CLOCK_SIZE + 1, #value, HOLDER_SIZE do
    local low, high, ends_at, units = parse(HOLDER_FORMAT, value, offset)
    ends_at = ends_at - step
    if ends_at > now then
      if low == id and high == id_high then
        own, own_end, own_offset = units, ends_at, offset
      elseif units > 0 then
        held = held + units
        if ends_at > latest then latest = ends_at end
      end
    end
  end
  return held, latest, own, own_end, own_offset, value, step
end
