-- Decides pair `i` and those after it: reads it, has the others decided, and charges it if all admit. So all are read
-- before one is charged. Returns whether all admit, whether a log is full, and the statuses from this pair on.
--
-- Here are the sliding log and sliding buckets; for the log the precision is 0. Below 0 it is another algorithm.
local function decide(i, admitted, full, decide, calendar, seek, call, parse, pack, sub, keys, arguments, now, keep)
  local quota, cost, window, precision = parse('<I4I4I6i6', arguments[1], 20 * i - 19)
  if precision < 0 then
    return calendar(i, admitted, full, quota, cost, window, precision,
      decide, calendar, seek, call, parse, pack, sub, keys, arguments, now, keep)
  end
  local key, purpose = keys[i], arguments[2]
  local at, used, first, drop, rest, _ = now, 0, 0, 0
  local born, last, newest, oldest, start, total, kept, count, front, blocks
  local tail = call('LINDEX', key, '-1')
  if tail then
    local loose = (#tail - 42) / 12
    if loose < 0 or loose % 1 > 0 then error('FOREIGNVALUE ' .. key) end
    born, last, newest, oldest, start, total, kept, count = parse('<I7I7I7I7I5I5BI3', tail)
    front, blocks = kept % 8, (count - 1 - loose) / 8
    if loose < front or loose > front + 8 or blocks < 0 or blocks % 1 > 0 then error('FOREIGNVALUE ' .. key) end
    -- Time stands still while the clock is a little behind; far behind, the log is not of this clock and is empty.
    if last <= now + window then
      if last > now then at = last end
      if newest > at - window then used = (total - start) % 1099511627776 end
    end
    if used > 0 and oldest <= at - window then
      local gaps, next_at, next_start = kept - front, 0
      if kept > 0 and kept < 8 then next_at, next_start = parse('<I7I5', tail, 43) end
      if next_at > at - window then
        -- As a rule only the oldest has left, and the next one is at hand.
        first, oldest, start, rest, kept = 1, next_at, next_start, sub(tail, 55), kept - 1
      else
        -- Where it would be if all came evenly.
        local guess = math.floor((at - window - oldest) / (newest - oldest) * (count - 1))
        first, oldest, start, _, rest, kept, drop =
          seek(call, parse, sub, key, tail, front, blocks, 1, count, math.min(guess + 1, count - 1), at - window + 1, 0, 0)
      end
      if gaps > 0 then
        -- What has lost all its units is passed over, up to the instant of a record that has not.
        local beyond, _, _, holds =
          seek(call, parse, sub, key, tail, front, blocks, first + 1, count, first + 1, 0, start, 1)
        if holds and holds > oldest then
          first, oldest, start, _, rest, kept, drop =
            seek(call, parse, sub, key, tail, front, blocks, first + 1, beyond, beyond - 1, holds, 0, 0)
        end
        kept = kept + gaps
      end
      used = (total - start) % 1099511627776
    end
  end

  local verdict, retry = 0, 0
  local wanting = used + cost - quota
  if wanting > 0 and cost > 0 and purpose ~= 'o' then
    admitted = false
    if cost > quota then
      verdict = 2
    else
      local leaves = oldest
      if wanting >= used then
        leaves = newest
      elseif wanting > 1 then
        -- Where it would be if all costs were the same.
        local guess = math.min(first + math.ceil(wanting * (count - first) / used), count - 1)
        local _, _, _, before =
          seek(call, parse, sub, key, tail, front, blocks, first + 1, count, guess, 0, start, wanting)
        leaves = before or oldest
      end
      verdict, retry = 1, leaves + window - now
    end
  end
  if cost > 0 and used > 0 and count - first >= 1048576 then full = true end

  local others = ''
  if i < #keys then
    admitted, full, others =
      decide(i + 1, admitted, full, decide, calendar, seek, call, parse, pack, sub, keys, arguments, now, keep)
  end

  -- A bucket stands at its end.
  local stands, ordinal = at, 0
  if precision > 0 then stands = at - at % precision + precision end
  -- What is used stops at 2^39, which only charges past the quota can reach.
  if purpose == 'o' then cost = math.min(cost, 549755813888 - used) end
  if admitted and not full and cost > 0 then
    if used == 0 then
      born, oldest = at, stands
      if purpose ~= 'p' then
        if tail then call('UNLINK', key) end
        call('RPUSH', key, pack('<I7I7I7I7I5I5BI3', at, at, stands, stands, 0, cost, 0, 1))
      end
    else
      if purpose == 'r' and precision == 0 and newest == at then
        local same = first
        if oldest < at then
          same = seek(call, parse, sub, key, tail, front, blocks, first + 1, count, count - 1, at, 0, 0)
        end
        ordinal = count - same
      end
      if purpose ~= 'p' then
        local command = 'LSET'
        rest = rest or sub(tail, 43)
        if drop > 0 then call('LTRIM', key, drop == 1 and '1' or drop, '-1') end
        if newest == stands and precision > 0 then
          tail = pack('<I7I7I7I7I5I5BI3c0',
            born, at, stands, oldest, start, total + cost, kept, count - first, rest)
        else
          local open = 12 * (kept % 8)
          if #rest == open + 96 then
            -- The records behind the blocks become one.
            call('LSET', key, '-1', sub(rest, open + 1))
            rest, command = sub(rest, 1, open), 'RPUSH'
          end
          tail = pack('<I7I7I7I7I5I5BI3c0I7I5',
            born, at, stands, oldest, start, total + cost, kept, count - first + 1, rest, stands, total)
        end
        if command == 'LSET' then call('LSET', key, '-1', tail) else call('RPUSH', key, tail) end
      end
    end
    -- A key is given a window and a quarter, with the first record of a quarter.
    if purpose ~= 'p' and (used == 0 or stands - stands % (window / 4) > newest) then
      call('PEXPIRE', key, math.ceil((stands - now + window * 1.25) / 1000) + keep)
    end
    used, newest = used + cost, stands
  end
  local remaining, next_after, reset = quota - used, window, 0
  if remaining < 0 then remaining = 0 end
  if used > 0 then next_after, reset = oldest + window - now, newest + window - now end
  local status = pack('<I8BI4I8I8I8', now, verdict, remaining, retry, next_after, reset)
  if purpose == 'r' then status = status .. pack('<I7I7I3', born or 0, stands, ordinal) end
  return admitted, full, status .. others
end
