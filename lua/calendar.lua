-- Sliding counter and fixed window: one string a pair, what the calendar window of its last charge has used and what the
-- one before it has. README.md has the layout.

-- Decides pair `i`, as `decide` does, and has it decide the others. The shape is -1 for the sliding counter.
local function calendar(i, admitted, full, quota, cost, window, shape,
    decide, calendar, seek, call, parse, pack, sub, keys, arguments, now, keep)
  local key, purpose = keys[i], arguments[2]
  local slides = shape == -1
  local at, born, current, previous, opens = now, now, 0, 0, true
  local value = call('GET', key)
  if value then
    if #value ~= 24 then error('FOREIGNVALUE ' .. key) end
    local stored, last, used, used_before = parse('<I7I7I5I5', value)
    -- Time stands still while the clock is a little behind; far behind, the value is not of this clock and is empty.
    if last <= now + window then
      if last > now then at = last end
      local passed = (at - at % window - last + last % window) / window
      if passed == 0 then
        current, previous, opens = used, used_before, used + used_before == 0
      elseif passed == 1 and slides then
        previous = used
      end
      if current + previous > 0 then born = stored else born = at end
    end
  end
  -- A sliding counter moves in ticks: `left` of `whole` remain of this window, and count of the previous one.
  local left, whole, tick, begin = 0, 1, window, at - at % window
  if slides then
    tick = math.ceil(window / 1048576)
    whole = math.ceil(window / tick)
    left = whole - math.floor((at - begin) / tick)
  end

  local verdict, retry = 0, 0
  local room = quota - current - cost
  if cost > 0 and previous * left > room * whole and purpose ~= 'o' then
    admitted = false
    if cost > quota then
      verdict = 2
    else
      -- With how many ticks remaining it fits: of this window, of the next one, or when nothing counts any more.
      local opening, remains = begin, 0
      if room >= 0 then remains = math.floor(room * whole / previous) end
      if remains == 0 then
        opening, remains = begin + window, whole
        if slides and current > 0 then remains = math.min(whole, math.floor((quota - cost) * whole / current)) end
      end
      if remains == 0 then opening, remains = begin + 2 * window, whole end
      verdict, retry = 1, opening + (whole - remains) * tick - now
    end
  end

  local others = ''
  if i < #keys then
    admitted, full, others =
      decide(i + 1, admitted, full, decide, calendar, seek, call, parse, pack, sub, keys, arguments, now, keep)
  end

  if admitted and not full and cost > 0 then
    current = math.min(current + cost, 8589934591)
    if purpose ~= 'p' then
      local stored = pack('<I7I7I5I5', born, at, current, previous)
      if opens then
        -- A key lives until what was charged has left, which the first charge of a window knows for all others.
        local gone = begin + window
        if slides then gone = gone + window end
        call('SET', key, stored, 'PX', math.ceil((gone - now) / 1000) + keep)
      else
        call('SETRANGE', key, 0, stored)
      end
    end
  end
  local counts = math.ceil(previous * left / whole)
  local remaining, next_after, reset = math.max(0, quota - current - counts), window, 0
  if not slides then
    if current > 0 then next_after, reset = begin + window - now, begin + window - now end
  elseif previous > 0 then
    next_after = math.min(begin + (whole - left + 1) * tick, begin + window) - now
    reset = begin + window - now
  elseif current > 0 then
    next_after = begin + window + tick - now
  end
  if slides and current > 0 then reset = begin + 2 * window - now end
  local status = pack('<I8BI4I8I8I8', now, verdict, remaining, retry, next_after, reset)
  if purpose == 'r' then status = status .. pack('<I7I7I3', born, at, 0) end
  return admitted, full, status .. others
end
