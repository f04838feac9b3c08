-- Purpose: part of the type token bucket: converts a usage after the rate of a policy has changed.
-- KEYS, ARGV: not read. Reply: none.
-- Units: usage in parts of a quota unit.

-- Returns `ceil(used * to / from)`, at most MAX_PARTS. The product may exceed 2^53, so it is divided bit by bit.
return function(used, from, to)
  local remainder = used % from
  local quotient = (used - remainder) / from * to
  -- `units` of `from` are `quotient` parts, with a rest of less than one part: from the highest bit of `to` to the lowest.
  local units, rest, bit = 0, 0, MAX_PARTS_OF_UNIT
  while bit >= 1 do
    units, rest = units * 2, rest * 2
    if to % (bit * 2) >= bit then rest = rest + remainder end
    units, rest, bit = units + (rest - rest % from) / from, rest % from, bit / 2
  end
  if rest > 0 then units = units + 1 end
  return math.min(quotient + units, MAX_PARTS)
end
