-- Purpose: part of the check script: charges a pair as many units as leave at most its cost, which is what an API has
--   answered that remains. It does so once for each answer, and only for one that is newer than those before.
-- KEYS: keys[1] is the key of the pair, of any type that counts units; keys[2] is the string of its newest answer.
-- ARGV: args[1] has the pair; args[4] is the instant of the answer, and those at which it ceases to apply and to be known.
-- Reply: the status of the pair, with the charge, and the units that were charged.
-- Units: instants in microseconds, costs in quota units.

-- Decides the check. A peek shows what remains, and an overage charges the difference.
return function(decide, CONTEXT)
  local check, answer = args[1], keys[2]
  local _, most = parse(PAIR_FORMAT, check, CLOCK_SIZE + 1)
  local answered_at, holds_until, known_until = parse(ANSWER_FORMAT, args[4])
  -- Returns the check of a pair with this cost.
  local function costing(units)
    return sub(check, 1, COST_OFFSET - 1) .. pack(UNITS_FORMAT, units) .. sub(check, COST_OFFSET + UNITS_SIZE)
  end
  keys = { keys[1] }
  local known, newest = call('GET', answer), 0
  if known then
    if #known ~= CLOCK_SIZE then error('FOREIGNVALUE ' .. answer) end
    newest = parse(CLOCK_FORMAT, known)
    -- An answer far ahead of the clock is of another clock.
    if newest > now + known_until - answered_at then newest = 0 end
  end
  args = { costing(0), PEEK }
  local units, _, full, statuses = 0, decide(1, true, false, CONTEXT)
  if full then return full end
  if answered_at > newest and answered_at <= now and now < holds_until then
    units = math.max(0, parse(REMAINING_FORMAT, statuses, REMAINING_OFFSET) - most)
    args = { costing(units), OVERAGE }
    full, statuses = select(2, decide(1, true, false, CONTEXT))
    if full then return full end
    -- Without it, the answer is charged again, which charges nothing unless units have returned.
    call('SET', answer, pack(CLOCK_FORMAT, answered_at), 'PX', math.ceil((known_until - now) / 1000) + extra_ttl)
  end
  return statuses .. pack(UNITS_FORMAT, units)
end
