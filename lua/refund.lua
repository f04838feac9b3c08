-- Purpose: the last part of the refund script. Refunds units to 1 to 8 charges, each at the charge's own place. A
--   charge that has left its window, or whose generation differs, receives no refund.
-- KEYS: one key per pair.
-- ARGV: [1] the pairs, 33 bytes each: the units to refund, the window, the precision, and the receipt of the charge.
-- Reply: the clock reading.
-- Units: instants and windows in microseconds, refunds in quota units.
--
-- Every pair is read before the first one is written. Refunds are rarer than checks, so these functions capture the
-- locals that they use.

-- Returns a function that replaces `call` in a search: it reads the blocks as they will be after the write.
local function reader_of(changed_blocks)
  return function(command, key, index) return changed_blocks[tonumber(index)] or call(command, key, index) end
end

-- Returns the tail of a log, the fields of its header, the number of records in front, and the number of blocks. If the
-- key does not exist, returns nothing.
local function read_header(key, window)
  local tail = call('LINDEX', key, '-1')
  if not tail then return end
  local in_tail = (#tail - HEADER_SIZE) / RECORD_SIZE
  if in_tail < 0 or in_tail % 1 > 0 then error('FOREIGNVALUE ' .. key) end
  local generation, last, newest, oldest, start, total, front_byte, count = parse(HEADER_FORMAT, tail)
  local front, blocks = front_byte % EMPTY_RECORDS, (count - 1 - in_tail) / BLOCK_RECORDS
  if in_tail < front or in_tail > front + BLOCK_RECORDS or blocks < 0 or blocks % 1 > 0
    or oldest > newest or newest > last + window or last > newest + window then
    error('FOREIGNVALUE ' .. key)
  end
  if blocks > 0 and call('LINDEX', key, blocks) ~= tail then error('FOREIGNVALUE ' .. key) end
  return tail, generation, last, newest, oldest, start, total, front_byte, count, front, blocks
end

-- Adds `units` to the starts of the records at the positions from `from` to `to`. Adds the blocks that change to
-- `changed_blocks`, and returns the changed tail. It writes nothing.
local function raise_starts(LOG, from, to, units, changed_blocks)
  local position = from
  while position <= to do
    local inner = position - front - 1
    if inner >= 0 and inner < BLOCK_RECORDS * blocks then
      local index = (inner - inner % BLOCK_RECORDS) / BLOCK_RECORDS
      local block, records = call('LINDEX', key, index), {}
      if not block or #block ~= BLOCK_SIZE then error('FOREIGNVALUE ' .. key) end
      for place = 0, BLOCK_RECORDS - 1 do
        local at, start = parse(RECORD_FORMAT, block, 1 + RECORD_SIZE * place)
        if place >= inner % BLOCK_RECORDS and position - inner % BLOCK_RECORDS + place <= to then
          start = (start + units) % START_MODULUS
        end
        records[place + 1] = pack(RECORD_FORMAT, at, start)
      end
      changed_blocks[index] = table.concat(records)
      position = position - inner % BLOCK_RECORDS + BLOCK_RECORDS
    else
      local offset = HEADER_SIZE + 1 - RECORD_SIZE + RECORD_SIZE * position
      if inner >= 0 then offset = offset - BLOCK_SIZE * blocks end
      local at, start = parse(RECORD_FORMAT, tail, offset)
      start = (start + units) % START_MODULUS
      tail = sub(tail, 1, offset - 1) .. pack(RECORD_FORMAT, at, start) .. sub(tail, offset + RECORD_SIZE)
      position = position + 1
    end
  end
  return tail
end

-- Refunds pair `i`, a sliding log or sliding buckets: reads it, refunds the pairs after it, and then writes it.
local function refund_log(i, refund_from)
  local key = KEYS[i]
  local units, window, _, receipt_generation, record_at, ordinal =
    parse(REFUND_FORMAT, ARGV[1], REFUND_SIZE * i - (REFUND_SIZE - 1))
  local tail, generation, last, newest, oldest, start, total, front_byte, count, front, blocks = read_header(key, window)
  local position, record_units = 0, 0
  if tail and generation == receipt_generation and last <= now + window
    and record_at + window > math.max(now, last) then
    local found_at, record_start = oldest, start
    if oldest < record_at then
      position = find_record(READER, LOG, 1, count, count - 1, record_at, ANY_UNITS)
    end
    position = position + ordinal
    if position > 0 and position < count then
      _, found_at, record_start = find_record(READER, LOG, position, position + 1, position, ANY_INSTANT, ANY_UNITS)
    end
    if position < count and found_at == record_at then
      local after = position + 1
      local _, _, next_start =
        find_record(READER, LOG, after, math.min(after + 1, count), after, ANY_INSTANT, ANY_UNITS)
      record_units = ((next_start or total) - record_start) % START_MODULUS
    end
  end

  if record_units == 0 then return refund_from(i + 1) end
  local changed_blocks, trim_from, trim_to = {}, 0, -1
  units = math.min(units, record_units)
  -- Raises the starts up to this record, or lowers all starts after it and the total: whichever records are fewer.
  if position < count - 1 - position then
    tail = raise_starts(LOG, 1, position, units, changed_blocks)
    start = (start + units) % START_MODULUS
  else
    tail = raise_starts(LOG, position + 1, count - 1, -units, changed_blocks)
    total = (total - units) % START_MODULUS
  end
  local read, rest, live_until = reader_of(changed_blocks), sub(tail, HEADER_SIZE + 1)
  if start == total then
    -- Nothing is used. The last instant stays, because time never goes back for a pair.
    changed_blocks, trim_from = {}, -1
    front_byte, count, rest, live_until = 0, 1, '', 0
  elseif units == record_units and position == count - 1 then
    -- The newest record must hold units. So the log ends with the newest record that does.
    local used, passed_at = (total - start) % START_MODULUS
    count, _, _, passed_at = find_record(read, parse, sub, LOG, 1, count, count - 1, ANY_INSTANT, start, used)
    newest = passed_at or oldest
    live_until = newest + window * LIFETIME
    local inner = count - front - 1
    if inner < 0 then
      trim_from = -1
      rest, front_byte = sub(rest, 1, RECORD_SIZE * (count - 1)), front_byte - front + count - 1
    elseif inner >= BLOCK_RECORDS * blocks then
      rest = sub(rest, 1, RECORD_SIZE * (count - 1 - BLOCK_RECORDS * blocks))
    else
      trim_to = (inner - inner % BLOCK_RECORDS) / BLOCK_RECORDS
      local block = read('LINDEX', key, trim_to)
      rest = sub(rest, 1, RECORD_SIZE * front) .. sub(block, 1, RECORD_SIZE * (inner % BLOCK_RECORDS))
    end
  elseif units == record_units and record_at == oldest then
    -- A record at the oldest instant must hold units. If none does, the log begins with the next instant that has one.
    local beyond, _, _, holder_at = find_record(read, parse, sub, LOG, 1, count, 1, ANY_INSTANT, start, 1)
    if holder_at and holder_at > oldest then
      local first, empty_records = 0, front_byte - front
      first, oldest, start, _, rest, front_byte, trim_from =
        find_record(read, parse, sub, LOG, 1, beyond, beyond - 1, holder_at, ANY_UNITS)
      front_byte, count = front_byte + empty_records, count - first
    end
  elseif units == record_units then
    front_byte = front + EMPTY_RECORDS
  end

  refund_from(i + 1)

  for index, block in pairs(changed_blocks) do call('LSET', key, index, block) end
  if trim_from ~= 0 or trim_to ~= -1 then call('LTRIM', key, trim_from, trim_to) end
  call('LSET', key, '-1',
    pack(HEADER_AND_RECORDS_FORMAT, generation, last, newest, oldest, start, total, front_byte, count, rest))
  if live_until then
    call('PEXPIRE', key, math.ceil((math.max(live_until, last + window, now) - now) / 1000) + extra_ttl)
  end
end

-- Refunds pair `i`, a sliding counter or a fixed window: reads it, refunds the pairs after it, and then writes it.
local function refund_calendar(i, refund_from)
  local key = KEYS[i]
  local units, window, precision, receipt_generation, at =
    parse(REFUND_FORMAT, ARGV[1], REFUND_SIZE * i - (REFUND_SIZE - 1))
  local value = call('GET', key)
  if value and #value ~= CALENDAR_SIZE then error('FOREIGNVALUE ' .. key) end

  refund_from(i + 1)

  if not value then return end
  local generation, last, current, previous = parse(CALENDAR_FORMAT, value)
  local leaves_at = at - at % window + window
  if precision == SLIDING_COUNTER then leaves_at = leaves_at + window end
  if generation ~= receipt_generation or last > now + window or leaves_at <= math.max(now, last) then return end
  if at - at % window == last - last % window then
    current = math.max(0, current - units)
  else
    previous = math.max(0, previous - units)
  end
  call('SETRANGE', key, 0, pack(CALENDAR_FORMAT, generation, last, current, previous))
  -- The time to live of a counter may exceed a window. A window is enough if nothing is used.
  if precision == SLIDING_COUNTER and current + previous == 0 and last - last % window + window > now then
    call('PEXPIRE', key, math.ceil((math.max(now, last) + window - now) / 1000) + extra_ttl)
  end
end

-- Refunds pair `i` and the pairs after it.
local function refund_from(i)
  if i > #KEYS then return end
  local precision = parse(PRECISION_FORMAT, ARGV[1], REFUND_SIZE * i - (REFUND_SIZE - PRECISION_PLACE))
  if precision < 0 then return refund_calendar(i, refund_from) end
  return refund_log(i, refund_from)
end

refund_from(1)
return now
