-- Gives units back, each to the charge that had taken them, if that still counts. As in a check, every pair is read
-- before one is written. This is called seldom, and its functions capture what they need.

-- What reads the blocks of a log as they will be once `blocks_to_be` are written.
local function reading(blocks_to_be)
  return function(command, key, index) return blocks_to_be[tonumber(index)] or call(command, key, index) end
end

-- The tail of a log and what stands in its header; how many records are loose in front, and how many blocks there are.
local function header(key)
  local tail = call('LINDEX', key, '-1')
  if not tail then return end
  local loose = (#tail - 42) / 12
  if loose < 0 or loose % 1 > 0 then error('FOREIGNVALUE ' .. key) end
  local born, last, newest, oldest, start, total, kept, count = parse('<I7I7I7I7I5I5BI3', tail)
  local front, blocks = kept % 8, (count - 1 - loose) / 8
  if loose < front or loose > front + 8 or blocks < 0 or blocks % 1 > 0 then error('FOREIGNVALUE ' .. key) end
  return tail, born, last, newest, oldest, start, total, kept, count, front, blocks
end

-- Adds `units` to the starts of the records from one position to another: notes the blocks that are to be stored, and
-- returns the tail.
local function raise(key, tail, front, blocks, from, to, units, blocks_to_be)
  local position = from
  while position <= to do
    local inner = position - front - 1
    if inner >= 0 and inner < 8 * blocks then
      local index = (inner - inner % 8) / 8
      local block, records = call('LINDEX', key, index), {}
      if not block or #block ~= 96 then error('FOREIGNVALUE ' .. key) end
      for place = 0, 7 do
        local at, start = parse('<I7I5', block, 1 + 12 * place)
        if place >= inner % 8 and position - inner % 8 + place <= to then start = (start + units) % 1099511627776 end
        records[place + 1] = pack('<I7I5', at, start)
      end
      blocks_to_be[index] = table.concat(records)
      position = position - inner % 8 + 8
    else
      local place = 31 + 12 * position
      if inner >= 0 then place = place - 96 * blocks end
      local at, start = parse('<I7I5', tail, place)
      start = (start + units) % 1099511627776
      tail = sub(tail, 1, place - 1) .. pack('<I7I5', at, start) .. sub(tail, place + 12)
      position = position + 1
    end
  end
  return tail
end

local function refund_log(i, others)
  local key = KEYS[i]
  local units, window, _, generation, stands, ordinal = parse('<I4I6i6I7I7I3', ARGV[1], 33 * i - 32)
  local tail, born, last, newest, oldest, start, total, kept, count, front, blocks = header(key)
  local position, holds = 0, 0
  if tail and born == generation and last <= now + window and stands + window > math.max(now, last) then
    local at, its_start = oldest, start
    if oldest < stands then position = seek(call, parse, sub, key, tail, front, blocks, 1, count, count - 1, stands, 0, 0) end
    position = position + ordinal
    if position > 0 and position < count then
      _, at, its_start = seek(call, parse, sub, key, tail, front, blocks, position, position + 1, position, 0, 0, 0)
    end
    if position < count and at == stands then
      local after = position + 1
      local _, _, ends = seek(call, parse, sub, key, tail, front, blocks, after, math.min(after + 1, count), after, 0, 0, 0)
      holds = ((ends or total) - its_start) % 1099511627776
    end
  end

  if holds == 0 then return others(i + 1) end
  local blocks_to_be, gone_before, gone_behind = {}, 0, -1
  units = math.min(units, holds)
  if position < count - 1 - position then
    tail = raise(key, tail, front, blocks, 1, position, units, blocks_to_be)
    start = (start + units) % 1099511627776
  else
    tail = raise(key, tail, front, blocks, position + 1, count - 1, -units, blocks_to_be)
    total = (total - units) % 1099511627776
  end
  local look, rest, lives = reading(blocks_to_be), sub(tail, 43)
  if start == total then
    -- Nothing is used. The last instant stays, for time does not go back.
    blocks_to_be, gone_before = {}, -1
    kept, count, rest, lives = 0, 1, '', 0
  elseif units == holds and position == count - 1 then
    -- The newest record holds units: the log ends with the last one that does.
    local used, before = (total - start) % 1099511627776
    count, _, _, before = seek(look, parse, sub, key, tail, front, blocks, 1, count, count - 1, 0, start, used)
    newest = before or oldest
    lives = newest + window * 1.25
    local inner = count - front - 1
    if inner < 0 then
      gone_before = -1
      rest, kept = sub(rest, 1, 12 * (count - 1)), kept - front + count - 1
    elseif inner >= 8 * blocks then
      rest = sub(rest, 1, 12 * (count - 1 - 8 * blocks))
    else
      gone_behind = (inner - inner % 8) / 8
      local block = look('LINDEX', key, gone_behind)
      rest = sub(rest, 1, 12 * front) .. sub(block, 1, 12 * (inner % 8))
    end
  elseif units == holds and stands == oldest then
    -- Something of the oldest instant holds units, too: what does not is passed over.
    local beyond, _, _, holder = seek(look, parse, sub, key, tail, front, blocks, 1, count, 1, 0, start, 1)
    if holder and holder > oldest then
      local first, gaps = 0, kept - front
      first, oldest, start, _, rest, kept, gone_before =
        seek(look, parse, sub, key, tail, front, blocks, 1, beyond, beyond - 1, holder, 0, 0)
      kept, count = kept + gaps, count - first
    end
  elseif units == holds then
    kept = front + 8
  end

  others(i + 1)

  for index, block in pairs(blocks_to_be) do call('LSET', key, index, block) end
  if gone_before ~= 0 or gone_behind ~= -1 then call('LTRIM', key, gone_before, gone_behind) end
  call('LSET', key, '-1',
    pack('<I7I7I7I7I5I5BI3c0', born, last, newest, oldest, start, total, kept, count, rest))
  if lives then call('PEXPIRE', key, math.ceil((math.max(lives, last + window, now) - now) / 1000) + keep) end
end

local function refund_calendar(i, others)
  local key = KEYS[i]
  local units, window, shape, generation, at = parse('<I4I6i6I7I7', ARGV[1], 33 * i - 32)
  local value = call('GET', key)
  if value and #value ~= 24 then error('FOREIGNVALUE ' .. key) end

  others(i + 1)

  if not value then return end
  local born, last, current, previous = parse('<I7I7I5I5', value)
  local counts = at - at % window + window
  if shape == -1 then counts = counts + window end
  if born ~= generation or last > now + window or counts <= math.max(now, last) then return end
  if at - at % window == last - last % window then
    current = math.max(0, current - units)
  else
    previous = math.max(0, previous - units)
  end
  call('SETRANGE', key, 0, pack('<I7I7I5I5', born, last, current, previous))
  -- What a counter has left of its time may be more than a window, which is enough where nothing is used.
  if shape == -1 and current + previous == 0 and last - last % window + window > now then
    call('PEXPIRE', key, math.ceil((math.max(now, last) + window - now) / 1000) + keep)
  end
end

local function refund(i)
  if i > #KEYS then return end
  local shape = parse('<i6', ARGV[1], 33 * i - 22)
  if shape < 0 then return refund_calendar(i, refund) end
  return refund_log(i, refund)
end

refund(1)
return 1
