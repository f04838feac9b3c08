-- The sliding log of one pair, in one LIST: full blocks of records, then the tail, which is the header and the
-- open block. README.md beside this file has the layout.
local HEADER, HEADER_BYTES = '<I7I7I7I5I5BI3', 35
local RECORD, RECORD_BYTES = '<I7I5', 12
local BLOCK, BLOCK_BYTES = 8, 96
local MOST_RECORDS = 1048576
local TOTALS = 1099511627776 -- running totals count modulo 2^40

local function foreign(key)
  error('FOREIGNVALUE: ' .. key .. ' was not written by this version')
end

-- Instant and running total of the record at a position, counted from the first record of the first block.
local function record(log, position)
  if position >= log.open then
    return struct.unpack(RECORD, log.tail, HEADER_BYTES + 1 + RECORD_BYTES * (position - log.open))
  end
  local offset = position % BLOCK
  local index = (position - offset) / BLOCK
  if index ~= log.index then
    local block = redis.call('LINDEX', log.key, index)
    if not block or #block ~= BLOCK_BYTES then foreign(log.key) end
    log.index, log.block = index, block
  end
  return struct.unpack(RECORD, log.block, 1 + RECORD_BYTES * offset)
end

-- The first position from `low` on whose instant is above `instant` and whose total is `units` or more beyond
-- `log.before`. The newest record is known to be such a one. First in growing steps, then by bisection.
local function seek(log, low, instant, units)
  local last = log.open + log.opened - 1
  local high, step = low, 1
  local function reached(position)
    local at, total = record(log, position)
    return at > instant and (total - log.before) % TOTALS >= units
  end
  while high < last and not reached(high) do
    low = high + 1
    high = math.min(high + step, last)
    step = step * 2
  end
  while low < high do
    local middle = math.floor((low + high) / 2)
    if reached(middle) then high = middle else low = middle + 1 end
  end
  return low
end

-- What is used of `key` in the window that ends now. Writes nothing.
local function read(key, window)
  local tail = redis.call('LINDEX', key, '-1')
  local log = { key = key, window = window, now = now, used = 0, exists = tail }
  if not tail then return log end

  local opened = (#tail - HEADER_BYTES) / RECORD_BYTES
  if opened ~= math.floor(opened) or opened < 1 or opened > BLOCK then foreign(key) end
  local born, last, oldest, oldest_total, before, left, count = struct.unpack(HEADER, tail)
  local open = left + count - opened
  if open < 0 or open % BLOCK ~= 0 or left >= BLOCK then foreign(key) end

  -- Time stands still while the clock is a little behind; far behind, the log is not of this clock and is empty.
  if last > now + window then return log end
  if last > now then log.now = last end
  local horizon = log.now - window
  local newest, total = struct.unpack(RECORD, tail, #tail - RECORD_BYTES + 1)
  if newest <= horizon then return log end

  log.tail, log.open, log.opened, log.born, log.last = tail, open, opened, born, last
  log.newest, log.total = newest, total
  log.oldest, log.oldest_total, log.before, log.first, log.count = oldest, oldest_total, before, left, count
  if oldest <= horizon then
    log.first = seek(log, left + 1, horizon, 0)
    local _
    _, log.before = record(log, log.first - 1)
    log.oldest, log.oldest_total = record(log, log.first)
    log.count = count - (log.first - left)
  end
  log.used = (total - log.before) % TOTALS
  return log
end

-- The wait until `units` of what is used have left.
local function wait_for(log, units)
  local at = log.oldest
  if units >= log.used then
    at = log.newest
  elseif (log.oldest_total - log.before) % TOTALS < units then
    at = record(log, seek(log, log.first + 1, 0, units))
  end
  return at + log.window - now
end

-- Records a charge at `log.now`, and drops the blocks that have left.
local function charge(log, cost)
  local key, at = log.key, log.now
  local quarter = log.window / 4
  local expire = true
  if log.used == 0 then
    if log.exists then redis.call('UNLINK', key) end
    local header = struct.pack(HEADER, at, at, at, cost, 0, 0, 1)
    redis.call('RPUSH', key, header .. struct.pack(RECORD, at, cost))
  else
    local left = log.first % BLOCK
    if log.first >= BLOCK then redis.call('LTRIM', key, (log.first - left) / BLOCK, '-1') end
    local header = struct.pack(HEADER, log.born, at, log.oldest, log.oldest_total, log.before, left, log.count + 1)
    local added = struct.pack(RECORD, at, (log.total + cost) % TOTALS)
    local records = string.sub(log.tail, HEADER_BYTES + 1)
    if log.opened < BLOCK then
      redis.call('LSET', key, '-1', header .. records .. added)
    else
      redis.call('LSET', key, '-1', records)
      redis.call('RPUSH', key, header .. added)
    end
    -- Four times a window is often enough: the key is given a window and a quarter.
    expire = at - at % quarter > log.last
  end
  if expire then
    redis.call('PEXPIRE', key, math.ceil((at - now + log.window + quarter) / 1000) + keep)
  end
end
