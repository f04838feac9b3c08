-- Purpose: part of the type in flight: leaves out the numbers that a holder does not hold any longer, after lost data.
-- KEYS, ARGV: not read. Reply: none.
-- Units: units in quota units.

-- Returns the units of the numbers that were drawn after `number`, and the value without the others: nil if it is lost.
return function(numbers, number, call, parse)
  local list, units, kept = call('GET', numbers), 0, {}
  if not list then return units, nil end
  for offset = 1, #list - NUMBER_SIZE + 1, NUMBER_SIZE do
    local other, cost = parse(NUMBER_FORMAT, list, offset)
    -- A check may overtake another one. Numbers begin anew after 2^32.
    if other > 0 and (other - number) % NUMBERS < NUMBERS / 2 then
      units = units + cost
      kept[#kept + 1] = list:sub(offset, offset + NUMBER_SIZE - 1)
    else
      kept[#kept + 1] = NO_NUMBER
    end
  end
  return units, table.concat(kept) .. '\0'
end
