-- Purpose: the type token bucket: counts the units that have not returned yet. Decides pair `i` and the pairs after it.
-- KEYS: keys[i] is the string of pair `i`.
-- ARGV: args[2] is the purpose.
-- Reply: the statuses of pair `i` and of the pairs after it, in order.
-- Units: instants and waits in microseconds, usage in parts of a quota unit.

-- Decides the pair, as types.lua describes. `window` is the number of parts of a unit, and `parameter` the number of parts that
-- return in a microsecond. The usage is a whole number of parts, below 2^53. `(a + -a % b) / b` is `ceil(a / b)`.
return function(i, admitted, full, PAIR, TYPE, CONTEXT)
  local key, purpose, capacity = keys[i], args[2], quota * window
  local at, used, generation = now, 0, nil
  local value = call('GET', key)
  if value then
    if #value ~= TOKENS_SIZE then error('FOREIGNVALUE ' .. key) end
    local last, stored, parts = parse(TOKENS_NUMBERS_FORMAT, value, GENERATION_SIZE + 1)
    if stored > MAX_PARTS or parts == 0 then error('FOREIGNVALUE ' .. key) end
    -- If the clock is behind the last charge by at most the time in which the capacity returns, time stands still. If it is
    -- behind by more, the value is foreign and counts as empty.
    if last <= now or last <= now + (capacity + -capacity % parameter) / parameter then
      if last > now then at = last end
      if parts ~= window then
        local convert = INCLUDE 'convert_parts.lua'
        stored = convert(stored, parts, window)
      end
      used = stored - (at - last) * parameter
      -- The generation is at the begin of the value, and `pack` reads no more of it.
      if used > 0 then generation = value else used = 0 end
    end
  end

  local verdict, retry_after = ADMIT, 0
  -- In this order, each difference is exact if the cost is at most the quota.
  local excess = used - (capacity - cost * window)
  if cost > 0 and excess > 0 and not EXCEEDS_QUOTA then
    admitted, verdict = false, NEVER
    if cost <= quota then verdict, retry_after = WAIT, at - now + (excess + -excess % parameter) / parameter end
  end

  INCLUDE 'decide_next.lua'

  local receipt = ''
  if HAS_RECEIPTS then receipt = NO_CHARGE end
  local charges = admitted and not full and cost > 0
  if charges then
    -- An overage is at most the capacity beyond the capacity.
    if excess > 0 then
      used = math.max(used, math.min(used + cost * window, 2 * capacity, MAX_PARTS))
    else
      used = used + cost * window
    end
  end
  local remaining, missing, reset_after = quota, 0, 0
  if used > 0 then
    local level = capacity - used
    if level < 0 then remaining = 0 else remaining = (level - level % window) / window end
    -- One more unit remains when so many parts have returned.
    missing = (remaining + 1) * window - level
    reset_after = at - now + (used + -used % parameter) / parameter
  end
  if charges then
    if purpose ~= PEEK then
      generation = generation or sub(args[1], -GENERATION_SIZE)
      local stored = pack(TOKENS_FORMAT, generation, at, used, window)
      call('SET', key, stored, 'PX', (reset_after + -reset_after % 1000) / 1000 + extra_ttl)
    end
    -- At its bound, not all units of a debit were charged. A refund would return those of other charges.
    if HAS_RECEIPTS and (used <= capacity or used < math.min(2 * capacity, MAX_PARTS)) then
      receipt = pack(RECEIPT_FORMAT, generation, at, 0)
    end
  end
  return admitted, full, pack(STATUS_FORMAT, now, verdict, remaining, retry_after, missing, reset_after) .. receipt .. others
end
