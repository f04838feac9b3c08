-- One check. First every pair is read.
local logs, admitted, full = {}, true, false
for i = 1, #KEYS do
  local key = KEYS[i]
  local quota, cost, window = parse('<I4I4I8', ARGV[1], 16 * i - 15)
  local at, used = now, 0
  local born, last, oldest, oldest_total, before, first, count, opened, newest, total
  local tail = call('LINDEX', key, '-1')
  if tail then
    opened = (#tail - 35) / 12
    if opened % 1 ~= 0 or opened < 1 or opened > 8 then error('FOREIGNVALUE ' .. key) end
    born, last, oldest, oldest_total, before, first, count = parse('<I7I7I7I5I5BI3', tail)
    local open = first + count - opened
    if open < 0 or open % 8 ~= 0 or first > 7 then error('FOREIGNVALUE ' .. key) end
    -- Time stands still while the clock is a little behind; far behind, the log is not of this clock and is empty.
    if last > now then at = last end
    newest, total = parse('<I7I5', tail, #tail - 11)
    if last <= now + window and newest > at - window then
      if oldest <= at - window then
        local left = first
        first, oldest, oldest_total, before =
          seek(key, tail, open, left + 1, left + count - 1, at - window, 0, 0, oldest_total, newest, total)
        count = count - (first - left)
      end
      used = (total - before) % 1099511627776
    else
      at = now
    end
  end
  if cost > 0 and used + cost > quota then admitted = false end
  if cost > 0 and used > 0 and count >= 1048576 then full = true end
  logs[i] = { quota, cost, window, at, used, tail,
    born, last, oldest, oldest_total, before, first, count, opened, newest, total }
end
if admitted and full then return pack('<BI8', 2, now) end

-- Then every pair is told its status, and charged if all admit. A denial reads on and writes nothing; an admission
-- reads no more.
local reply = pack('<BI8', 1, now)
for i = 1, #KEYS do
  local key = KEYS[i]
  local quota, cost, window, at, used, tail,
    born, last, oldest, oldest_total, before, first, count, opened, newest, total = unpack(logs[i], 1, 16)
  local verdict, retry, next_after, reset = 0, 0, window, 0
  if used > 0 then next_after, reset = oldest + window - now, newest + window - now end

  local wanting = used + cost - quota
  if wanting > 0 and cost > 0 then
    if cost > quota then
      verdict = 2
    else
      verdict, retry = 1, next_after
      if wanting >= used then
        retry = reset
      elseif (oldest_total - before) % 1099511627776 < wanting then
        local open = first + count - opened
        local _, leaves =
          seek(key, tail, open, first + 1, first + count - 1, 0, before, wanting, oldest_total, newest, total)
        retry = leaves + window - now
      end
    end
  elseif admitted and cost > 0 then
    local expire = true
    if used == 0 then
      if tail then call('UNLINK', key) end
      call('RPUSH', key, pack('<I7I7I7I5I5BI3I7I5', at, at, at, cost, 0, 0, 1, at, cost))
      next_after = at + window - now
    else
      local left = first % 8
      if first > 7 then call('LTRIM', key, (first - left) / 8, '-1') end
      local records = string.sub(tail, 36)
      if opened == 8 then
        call('LSET', key, '-1', records)
        records = ''
      end
      -- Five bytes hold the total modulo 2^40.
      tail = pack('<I7I7I7I5I5BI3c0I7I5',
        born, at, oldest, oldest_total, before, left, count + 1, records, at, total + cost)
      if opened == 8 then call('RPUSH', key, tail) else call('LSET', key, '-1', tail) end
      -- A key is given a window and a quarter, with the first charge of a quarter.
      expire = at - at % (window / 4) > last
    end
    if expire then call('PEXPIRE', key, math.ceil((at - now + window * 1.25) / 1000) + keep) end
    reset, used = at + window - now, used + cost
  end
  local remaining = quota - used
  if remaining < 0 then remaining = 0 end
  reply = pack('<c0BI4I8I8I8', reply, verdict, remaining, retry, next_after, reset)
end
return reply
