-- Purpose: the type sliding counter: counts a calendar window, and a share of the one before. Decides pair `i` and the
--   pairs after it.
-- KEYS: keys[i] is the string of pair `i`.
-- ARGV: args[2] is the purpose.
-- Reply: the statuses of pair `i` and of the pairs after it, in order.
-- Units: instants, windows, ticks and waits in microseconds, usage in quota units.

-- Decides the pair, as types.lua describes. It has no parameter.
local key, purpose = keys[i], args[2]
local read_calendar = INCLUDE 'read_calendar.lua'
local CALENDAR = read_calendar(key, window, now, READER)
-- The counter moves in ticks. `left` of `whole` ticks remain of the window: the share of `previous` that counts.
-- `(a + -a % b) / b` is `ceil(a / b)`, and `(a - a % b) / b` is `floor(a / b)`.
local begin, tick = at - at % window, (window + -window % MAX_TICKS) / MAX_TICKS
local whole = (window + -window % tick) / tick
local left = whole - (at - begin - (at - begin) % tick) / tick

local verdict, retry_after = ADMIT, 0
local room = quota - current - cost
if cost > 0 and previous * left > room * whole and not EXCEEDS_QUOTA then
  admitted = false
  if cost > quota then
    verdict = NEVER
  else
    -- The cost fits when `fitting` ticks remain: of this window, of the next one, or when nothing counts any more.
    local fitting_begin, fitting = begin, 0
    if room >= 0 then fitting = math.floor(room * whole / previous) end
    if fitting == 0 then
      fitting_begin, fitting = begin + window, whole
      if current > 0 then fitting = math.min(whole, math.floor((quota - cost) * whole / current)) end
    end
    if fitting == 0 then fitting_begin, fitting = begin + 2 * window, whole end
    verdict, retry_after = WAIT, fitting_begin + (whole - fitting) * tick - now
  end
end

INCLUDE 'decide_next.lua'

local receipt = ''
if HAS_RECEIPTS then receipt = NO_CHARGE end
if admitted and not full and cost > 0 then
  current = current + cost
  if current > MAX_CALENDAR_USED then current = MAX_CALENDAR_USED end
  if purpose ~= PEEK then
    generation = generation or sub(args[1], -GENERATION_SIZE)
    local charge_calendar = INCLUDE 'charge_calendar.lua'
    charge_calendar(key, CALENDAR, begin + 2 * window - now, extra_ttl, call, pack)
  end
  if HAS_RECEIPTS then receipt = pack(RECEIPT_FORMAT, generation, at, 0) end
end
local previous_share = (previous * left + -(previous * left) % whole) / whole
local remaining, next_after, reset_after = quota - current - previous_share, window, 0
if remaining < 0 then remaining = 0 end
if current + previous > 0 then
  next_after, reset_after = begin + window - now, begin + window - now
  -- One more unit remains when `units` are used. As above, this is when `fitting` ticks remain.
  local units, fitting = quota - remaining - 1, 0
  if previous > 0 and units >= current then fitting = math.floor((units - current) * whole / previous) end
  if fitting > 0 then
    next_after = begin + (whole - fitting) * tick - now
  elseif current > 0 then
    fitting = math.min(whole, math.floor(units * whole / current))
    -- The last tick may be shorter.
    next_after = begin + window + math.min((whole - fitting) * tick, window) - now
  end
  if current > 0 then reset_after = reset_after + window end
end
statuses = pack(STATUS_FORMAT, now, verdict, remaining, retry_after, next_after, reset_after) .. receipt .. statuses
