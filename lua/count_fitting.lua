-- Purpose: part of the check and the merged script: how many of several equal checks fit.
-- KEYS, ARGV: not read. Reply: none.
-- Units: costs in quota units.

-- Returns how many of `count` checks fit into what the statuses of a denied check say remains.
return function(check, pair_count, count, statuses, parse)
  for i = 1, pair_count do
    local _, cost = parse(PAIR_FORMAT, check, CLOCK_SIZE + 1 + PAIR_SIZE * (i - 1))
    -- A denied check has as many bytes of receipts for each pair.
    local remaining = parse(REMAINING_FORMAT, statuses, #statuses / pair_count * (i - 1) + REMAINING_OFFSET)
    if cost > 0 then count = math.min(count, math.floor(remaining / cost)) end
  end
  return count
end
