-- Purpose: part of the check and the merged script: makes one check of several equal ones.
-- KEYS, ARGV: not read. Reply: none.
-- Units: windows in microseconds, costs in quota units.

-- Returns a check whose costs are `times` those of `check`.
return function(check, pair_count, times, parse, pack, sub)
  if times == 1 then return check end
  local fields = { sub(check, 1, CLOCK_SIZE) }
  for i = 1, pair_count do
    local quota, cost, window, typed_parameter = parse(PAIR_FORMAT, check, CLOCK_SIZE + 1 + PAIR_SIZE * (i - 1))
    fields[i + 1] = pack(PAIR_FORMAT, quota, cost * times, window, typed_parameter)
  end
  return table.concat(fields) .. sub(check, -GENERATION_SIZE)
end
