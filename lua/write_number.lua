-- Purpose: part of the type in flight: writes a number of a holder where it has no place yet.
-- KEYS, ARGV: not read. Reply: none.
-- Units: times in microseconds, units in quota units.

-- Writes `stored` at an index, and makes room for as many numbers again. The size of numbers with room is no multiple of
-- that of a number. Returns the units of the other numbers: `own`, or 0 if the holder has no entry or its numbers are lost.
return function(numbers, index, stored, own, hold_time, extra_ttl)
  local alone = string.rep(NO_NUMBER, index) .. stored
  local list = own and redis.call('GET', numbers) or alone
  -- It has been written. If nothing else is there, the others are lost: each has an index below the room.
  if list == alone then own = 0 end
  local room = math.max(MIN_NUMBERS_SIZE, 2 * #list) + 1
  local lifetime = math.ceil(hold_time * LIFETIME / 1000) + extra_ttl
  redis.call('SET', numbers, list .. string.rep('\0', room - #list), 'PX', lifetime)
  return own
end
