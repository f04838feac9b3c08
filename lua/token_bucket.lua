-- Purpose: the type token bucket: counts the units that have not returned yet. Decides pair `i` and the pairs after it.
-- KEYS: keys[i] is the string of pair `i`.
-- ARGV: args[2] is the purpose.
-- Reply: the statuses of pair `i` and of the pairs after it, in order.
-- Units: instants and waits in microseconds, usage in parts of a quota unit.

-- Decides the pair, as types.lua describes. `window` is the number of parts of a unit, and `parameter` the number of parts that
-- return in a microsecond. The usage is a whole number of parts, below 2^53. `(a + -a % b) / b` is `ceil(a / b)`.
local key, purpose, capacity = keys[i], args[2], quota * window
local at, used, expires_at, generation = now, 0, 0, nil
local value = call('GET', key)
if value then
  local last, stored, parts
  if #value == PLAIN_TOKENS_SIZE then
    last, stored, parts, expires_at = parse(PLAIN_TOKENS_FORMAT, value)
  elseif #value == TOKENS_SIZE then
    last, stored, parts = parse(TOKENS_NUMBERS_FORMAT, value, GENERATION_SIZE + 1)
    -- The generation is at the begin of the value, and `pack` reads no more of it.
    generation = value
  else
    error('FOREIGNVALUE ' .. key)
  end
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
  end
  if used <= 0 then used, generation = 0, nil end
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
  if HAS_RECEIPTS then generation = generation or sub(args[1], -GENERATION_SIZE) end
  if generation and purpose ~= PEEK then
    local stored = pack(TOKENS_FORMAT, generation, at, used, window)
    call('SET', key, stored, 'PX', (reset_after + -reset_after % 1000) / 1000 + extra_ttl)
  elseif purpose ~= PEEK then
    local full_at, refilled_in = now + reset_after, (capacity + -capacity % parameter) / parameter
    -- The key expires after all units have returned, at most the time of a full capacity later.
    if full_at <= expires_at and expires_at <= full_at + refilled_in then
      call('SETRANGE', key, '0', pack(PLAIN_TOKENS_FORMAT, at, used, window, expires_at))
    else
      -- The key lives for twice as long, so that most charges need not set when it expires.
      local lives = reset_after + refilled_in
      if reset_after < refilled_in then lives = 2 * reset_after end
      local stored = pack(PLAIN_TOKENS_FORMAT, at, used, window, now + lives)
      call('SET', key, stored, 'PX', (lives + -lives % 1000) / 1000 + extra_ttl)
    end
  end
  if HAS_RECEIPTS then
    -- At its bound, not all units of a debit were charged. A refund would return those of other charges, so no pair has the
    -- generation of this receipt.
    if used > capacity and used >= math.min(2 * capacity, MAX_PARTS) then generation = NO_GENERATION end
    receipt = pack(RECEIPT_FORMAT, generation, at, 0)
  end
end
statuses = pack(STATUS_FORMAT, now, verdict, remaining, retry_after, missing, reset_after) .. receipt .. statuses
