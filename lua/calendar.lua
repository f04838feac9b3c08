-- Purpose: part of the check script. Decides a pair whose algorithm is the sliding counter or the fixed window, and the
-- pairs after it. README.md has the layout.
-- KEYS: KEYS[i] is the string of pair `i`.
-- ARGV: [1] the generation in the last 7 bytes; [2] the purpose. The fields of pair `i` are parameters.
-- Reply: the statuses of pair `i` and of the pairs after it, in order.
-- Units: instants, windows, ticks and waits in microseconds, usage in quota units.

-- Decides pair `i` and the pairs after it, as `decide` does. The precision is -1 for the sliding counter, and -2 for
-- the fixed window.
local function decide_calendar(i, admitted, full, PAIR, CONTEXT)
  local key, purpose = KEYS[i], ARGV[2]
  local slides = precision == SLIDING_COUNTER
  -- `current` is the usage of the calendar window, and `previous` that of the window before. `is_first` is whether a
  -- charge would be the first in its calendar window. If nothing is used, `generation` is nil.
  local at, current, previous, is_first, generation = now, 0, 0, true
  local value = call('GET', key)
  if value then
    if #value ~= CALENDAR_SIZE then error('FOREIGNVALUE ' .. key) end
    local stored_generation, last, stored_current, stored_previous = parse(CALENDAR_FORMAT, value)
    -- If the clock is behind the last charge by at most a window, time stands still. If it is behind by more, the value
    -- is foreign and counts as empty.
    if last <= now + window then
      if last > now then at = last end
      local windows_passed = (at - at % window - last + last % window) / window
      if windows_passed == 0 then
        current, previous, is_first = stored_current, stored_previous, stored_current + stored_previous == 0
      elseif windows_passed == 1 and slides then
        previous = stored_current
      end
      if current + previous > 0 then generation = stored_generation end
    end
  end
  -- A sliding counter moves in ticks. `left` of `whole` ticks remain of the window: the share of `previous` that
  -- counts.
  local left, whole, tick, begin = 0, 1, window, at - at % window
  if slides then
    -- `(a + -a % b) / b` is `ceil(a / b)`, and `(a - a % b) / b` is `floor(a / b)`.
    tick = (window + -window % MAX_TICKS) / MAX_TICKS
    whole = (window + -window % tick) / tick
    left = whole - (at - begin - (at - begin) % tick) / tick
  end

  local verdict, retry_after = ADMIT, 0
  local room = quota - current - cost
  if cost > 0 and previous * left > room * whole and purpose ~= OVERAGE then
    admitted = false
    if cost > quota then
      verdict = NEVER
    else
      -- The cost fits when `fitting` ticks remain: of this window, of the next one, or when nothing counts any more.
      local fitting_begin, fitting = begin, 0
      if room >= 0 then fitting = math.floor(room * whole / previous) end
      if fitting == 0 then
        fitting_begin, fitting = begin + window, whole
        if slides and current > 0 then
          fitting = math.min(whole, math.floor((quota - cost) * whole / current))
        end
      end
      if fitting == 0 then fitting_begin, fitting = begin + 2 * window, whole end
      verdict, retry_after = WAIT, fitting_begin + (whole - fitting) * tick - now
    end
  end

  local others = ''
  if i < #KEYS then
    admitted, full, others = decide(i + 1, admitted, full, CONTEXT)
  end

  local receipt = ''
  if purpose == RESERVE then receipt = NO_CHARGE end
  if admitted and not full and cost > 0 then
    current = current + cost
    if current > MAX_CALENDAR_USED then current = MAX_CALENDAR_USED end
    if purpose ~= PEEK then
      generation = generation or sub(ARGV[1], -GENERATION_SIZE)
      local stored = pack(CALENDAR_FORMAT, generation, at, current, previous)
      if is_first then
        -- All charges of a calendar window leave at the same instant. So the first one sets the time to live.
        local leaves_at = begin + window
        if slides then leaves_at = leaves_at + window end
        call('SET', key, stored, 'PX', math.ceil((leaves_at - now) / 1000) + extra_ttl)
      else
        call('SETRANGE', key, 0, stored)
      end
    end
    if purpose == RESERVE then receipt = pack(RECEIPT_FORMAT, generation, at, 0) end
  end
  local previous_share = (previous * left + -(previous * left) % whole) / whole
  local remaining, next_after, reset_after = quota - current - previous_share, window, 0
  if remaining < 0 then remaining = 0 end
  if current + previous > 0 then
    next_after, reset_after = begin + window - now, begin + window - now
    if slides then
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
  end
  local status = pack(STATUS_FORMAT, now, verdict, remaining, retry_after, next_after, reset_after)
  return admitted, full, status .. receipt .. others
end
