-- Purpose: part of the refund script. Refunds units to a charge of a log.
-- KEYS: KEYS[i] is the LIST of pair `i`.
-- ARGV: [1] pair `i` at byte 33 * i - 24.
-- Reply: none.
-- Units: instants and windows in microseconds, refunds in quota units.
local find_record, log_from = INCLUDE 'find_record.lua', INCLUDE 'log_from.lua'

-- Reads a log into a table: its key, the fields of its header, and those of LOG; the records of its tail end at
-- `tail_end`. `changed` holds the blocks that change, by their index. `read` replaces `call` in a search: it reads these,
-- and each other block once. If the key does not exist, returns nothing.
local function read_log(key, window, precision)
  local stored = call('LINDEX', key, '-1')
  if not stored then return end
  local changed, unchanged = {}, {}
  local log = { key = key, tail = stored, tail_end = -1, number = 1, tagged = 0, first_added = 0, changed = changed }
  function log.read(command, list, index)
    index = tonumber(index)
    if index < 0 then index = index + log.blocks + 1 end
    local block = changed[index] or unchanged[index] or call(command, list, log.nearest(index))
    unchanged[index] = block
    return block
  end
  -- Returns the index of a block, from the nearer end of the list. Servers before Redis 7 walk from the end that its
  -- sign names.
  function log.nearest(index)
    return 2 * index > log.blocks and index - log.blocks - 1 or index
  end
  if #stored == SHORT_SIZE then
    local sum
    log.generation, log.last, log.total, sum = parse(SHORT_FORMAT, stored)
    if sum ~= (log.last + log.total) % CHECK_MODULUS + 1 then error('FOREIGNVALUE ' .. key) end
    log.newest, log.start, log.front_byte, log.count, log.front, log.blocks = RECORD_OF_LAST, 0, 0, 1, 0, 0
    log.oldest = log.newest
    return log
  end
  local tree, in_tail = '', (#stored - HEADER_SIZE) / RECORD_SIZE
  if in_tail % 1 > 0 then
    tree, log.tail_end, in_tail = sub(stored, -TREE_SIZE), -TREE_SIZE - 1, (#stored - HEADER_SIZE - TREE_SIZE) / RECORD_SIZE
  end
  if in_tail < 0 or in_tail % 1 > 0 then error('FOREIGNVALUE ' .. key) end
  log.generation, log.last, log.newest, log.oldest, log.start, log.total, log.front_byte, log.count =
    parse(HEADER_FORMAT, stored)
  log.front, log.blocks = log.front_byte % EMPTY_RECORDS, (log.count - 1 - in_tail) / BLOCK_RECORDS
  if tree ~= '' then log.number, log.tagged, log.first_added = parse(TREE_FORMAT, tree) end
  if in_tail < log.front or in_tail > log.front + BLOCK_RECORDS or log.blocks < 0 or log.blocks % 1 > 0
    or log.number < 1 or log.tagged > log.blocks
    or log.oldest > log.newest or log.newest > log.last + window or log.last > log.newest + window
    or log.blocks > 0 and call('LINDEX', key, log.blocks) ~= stored then
    error('FOREIGNVALUE ' .. key)
  end
  return log
end

-- Calls `find_record` for a log as it will be after the write.
local function find(log, RANGE, instant, base, units)
  return find_record(log.read, parse, pack, sub, log.key, log.tail, log.front, log.blocks, log.number, log.tagged,
    log.first_added, RANGE, instant, base, units)
end

-- Calls `log_from` for a log as it will be after the write.
local function from(log, position, source, source_offset)
  local _, start = parse(RECORD_FORMAT, source, source_offset)
  return log_from(log.read, parse, pack, sub, log.key, log.tail, log.front, log.blocks, log.number, log.tagged,
    log.first_added, position, start, source, source_offset)
end

-- Returns the units of a block's tag, and the block.
local function tag_and_block(log, index)
  local block = log.read('LINDEX', log.key, index)
  if block and #block == BLOCK_SIZE then return 0, block end
  if not block or #block ~= TAGGED_BLOCK_SIZE then error('FOREIGNVALUE ' .. log.key) end
  return parse(TAG_FORMAT, block, TAG_OFFSET), block
end

-- Adds `units` to the starts of the records at the positions from `from` to `to`, one by one.
local function raise_starts(log, from, to, units)
  local position = from
  while position <= to do
    local inner = position - log.front - 1
    if inner >= 0 and inner < BLOCK_RECORDS * log.blocks then
      local index, records = (inner - inner % BLOCK_RECORDS) / BLOCK_RECORDS, {}
      local _, block = tag_and_block(log, index)
      for index_in_block = 0, BLOCK_RECORDS - 1 do
        local at, start = parse(RECORD_FORMAT, block, 1 + RECORD_SIZE * index_in_block)
        if index_in_block >= inner % BLOCK_RECORDS and position - inner % BLOCK_RECORDS + index_in_block <= to then
          start = (start + units) % START_MODULUS
        end
        records[index_in_block + 1] = pack(RECORD_FORMAT, at, start)
      end
      log.changed[index] = table.concat(records) .. sub(block, TAG_OFFSET)
      position = position - inner % BLOCK_RECORDS + BLOCK_RECORDS
    else
      local tail, offset = log.tail, HEADER_SIZE + 1 - RECORD_SIZE + RECORD_SIZE * position
      if inner >= 0 then offset = offset - BLOCK_SIZE * log.blocks end
      local at, start = parse(RECORD_FORMAT, tail, offset)
      start = (start + units) % START_MODULUS
      log.tail = sub(tail, 1, offset - 1) .. pack(RECORD_FORMAT, at, start) .. sub(tail, offset + RECORD_SIZE)
      position = position + 1
    end
  end
end

-- Returns how many blocks a tag covers: the largest power of two that divides the number of its block.
local function span_of(node)
  local span = 1
  while node % (2 * span) == 0 do span = 2 * span end
  return span
end

-- Adds `units` to the starts of all records in the blocks from the index `from` up to, but not including, `beyond`, by
-- tags. `from`
-- is 0, or a block at which the tag of a later block begins that covers the block before `beyond`.
local function add_tags(log, from, beyond, units)
  local node = log.number + beyond - 1
  while node >= log.number + from do
    local tag, block = tag_and_block(log, node - log.number)
    log.changed[node - log.number] = sub(block, 1, BLOCK_SIZE) .. pack(TAG_FORMAT, (tag + units) % START_MODULUS)
    node = node - span_of(node)
  end
  log.tagged = math.max(log.tagged, beyond)
end

-- Moves the tags of the blocks from the index `beyond` on to the blocks before, as far as they cover these.
local function move_tags(log, beyond)
  local last = log.number + beyond - 1
  -- A tag that covers any of the blocks before covers the last of them.
  local node = last + span_of(last)
  while node < log.number + log.tagged do
    local tag = tag_and_block(log, node - log.number)
    if tag > 0 then add_tags(log, math.max(0, node - span_of(node) + 1 - log.number), beyond, tag) end
    node = node + span_of(node)
  end
  log.tagged = math.min(log.tagged, beyond)
end

-- Returns the units of the record at a position. Of the oldest record, `source` is nil.
local function units_of(log, position, source, offset)
  local _, start, next_start
  if source and source ~= log.tail and offset < LAST_RECORD_OFFSET then
    -- The next record is in the same block, so the same tags count for both.
    _, start, _, next_start = parse(TWO_RECORDS_FORMAT, source, offset)
  else
    start, next_start = log.start, log.total
    if source then start = from(log, position, source, offset) end
    if position + 1 < log.count then
      local after, _, _, next_source, next_offset = find(log, position + 1, position + 2, position + 1, ANY_INSTANT, ANY_UNITS)
      next_start = from(log, after, next_source, next_offset)
    end
  end
  return (next_start - start) % START_MODULUS
end

-- Finds the record of a receipt. Returns its position and its units, or 0 units if nothing can be refunded.
local function find_charge(log, record_at, ordinal)
  local position, found_at, source, offset, _ = 0, log.oldest
  if log.oldest < record_at then
    -- The first probe is the position that even arrivals would have.
    local guess = math.floor((record_at - log.oldest) / (log.newest - log.oldest) * (log.count - 1))
    guess = math.max(1, math.min(guess, log.count - 1))
    position, found_at, _, source, offset = find(log, 1, log.count, guess, record_at, ANY_UNITS)
  end
  if ordinal > 0 then
    position = position + ordinal
    _, found_at, _, source, offset =
      find(log, position, math.min(position + 1, log.count), position, ANY_INSTANT, ANY_UNITS)
  end
  if found_at ~= record_at then return position, 0 end
  return position, units_of(log, position, source, offset)
end

-- Takes units from the record at a position: changes the starts of the records before it, or of those after it.
local function take_units(log, position, units)
  local records_after = log.count - 1 - position
  if records_after <= DIRECT_RECORDS and records_after <= position then
    -- Lowers the starts of all records after this one, and the total.
    raise_starts(log, position + 1, log.count - 1, -units)
    log.total = (log.total - units) % START_MODULUS
    return
  end
  -- Raises the starts up to this record: of few records one by one, and otherwise of whole blocks by tags.
  log.start = (log.start + units) % START_MODULUS
  if position <= DIRECT_RECORDS then
    raise_starts(log, 1, position, units)
  else
    local inner = position - log.front - 1
    raise_starts(log, 1, log.front, units)
    raise_starts(log, position - inner % BLOCK_RECORDS, position, units)
    add_tags(log, 0, (inner - inner % BLOCK_RECORDS) / BLOCK_RECORDS, units)
    log.first_added = (log.first_added + units) % START_MODULUS
  end
end

-- Removes the newest records, because they hold no units: the log ends with the newest record that does.
local function remove_newest(log, window)
  local used = (log.total - log.start) % START_MODULUS
  local count, _, passed_at = find(log, 1, log.count, log.count - 1, ANY_INSTANT, log.start, used)
  log.newest = passed_at or log.oldest
  log.live_until = log.newest + window * LIFETIME
  local inner = count - log.front - 1
  if inner < 0 then
    log.trim_from, log.tagged = -1, 0
    log.rest, log.front_byte = sub(log.rest, 1, RECORD_SIZE * (count - 1)), log.front_byte - log.front + count - 1
  elseif inner >= BLOCK_RECORDS * log.blocks then
    log.rest = sub(log.rest, 1, RECORD_SIZE * (count - 1 - BLOCK_RECORDS * log.blocks))
  else
    log.trim_to = (inner - inner % BLOCK_RECORDS) / BLOCK_RECORDS
    log.rest = sub(log.rest, 1, RECORD_SIZE * log.front)
    if inner % BLOCK_RECORDS > 0 then
      -- Its first records come behind the blocks.
      local begin = count - inner % BLOCK_RECORDS
      local _, at, _, source, offset = find(log, begin, begin + 1, begin, ANY_INSTANT, ANY_UNITS)
      local start, following = from(log, begin, source, offset)
      log.rest = log.rest .. pack(RECORD_FORMAT, at, start) .. sub(following, 1, RECORD_SIZE * (inner % BLOCK_RECORDS - 1))
    end
    move_tags(log, log.trim_to)
  end
  log.count = count
end

-- Skips the oldest instant if none of its records holds units: the log begins with the next instant that has one.
local function skip_oldest(log)
  local beyond, _, holder_at = find(log, 1, log.count, 1, ANY_INSTANT, log.start, 1)
  if not holder_at or holder_at <= log.oldest then return end
  local empty_records, first, next_added, source, offset = log.front_byte - log.front
  first, log.oldest, _, source, offset = find(log, 1, beyond, beyond - 1, holder_at, ANY_UNITS)
  log.start, log.rest, log.front_byte, log.trim_from, next_added = from(log, first, source, offset)
  log.front_byte, log.count = log.front_byte + empty_records, log.count - first
  if log.trim_from > 0 then
    log.number, log.tagged, log.first_added = log.number + log.trim_from, math.max(0, log.tagged - log.trim_from), next_added
  end
end

-- Stores a log.
local function write_log(log, window, precision)
  local key, trims = log.key, log.blocks > 0 and (log.trim_from ~= 0 or log.trim_to ~= -1)
  -- Without permission for LTRIM, this call fails before the first write. It deletes nothing.
  if trims then call('LTRIM', key, '0', '-1') end
  for index, block in pairs(log.changed) do call('LSET', key, log.nearest(index), block) end
  local stored
  if log.count == 1 and log.newest == RECORD_OF_LAST then
    local used = (log.total - log.start) % START_MODULUS
    stored = pack(SHORT_FORMAT, log.generation, log.last, used, (log.last + used) % CHECK_MODULUS + 1)
  else
    stored = pack(HEADER_AND_RECORDS_FORMAT, log.generation, log.last, log.newest, log.oldest, log.start, log.total,
      log.front_byte, log.count, log.rest)
    if log.tagged > 0 then stored = stored .. pack(TREE_FORMAT, log.number, log.tagged, log.first_added) end
  end
  -- The tail replaces the element that is the last one after LTRIM.
  call('LSET', key, log.nearest(log.trim_to), stored)
  if trims then call('LTRIM', key, log.trim_from, log.trim_to) end
  if log.live_until then
    call('PEXPIRE', key, math.ceil((math.max(log.live_until, log.last + window, now) - now) / 1000) + extra_ttl)
  end
end

-- Refunds pair `i`, a log: reads it, refunds the pairs after it, and then writes it.
local function refund_log(i, refund_from)
  local units, window, typed_parameter, receipt_generation, record_at, ordinal =
    parse(REFUND_FORMAT, ARGV[1], CLOCK_SIZE + 1 + REFUND_SIZE * (i - 1))
  local precision = typed_parameter % TYPE_UNIT
  local log = read_log(KEYS[i], window, precision)
  local position, record_units = 0, 0
  if log and log.generation == receipt_generation and log.last <= now + window
    and record_at + window > math.max(now, log.last) then
    position, record_units = find_charge(log, record_at, ordinal)
  end
  if record_units == 0 then return refund_from(i + 1) end
  units = math.min(units, record_units)
  local is_newest = position == log.count - 1
  take_units(log, position, units)

  log.rest, log.trim_from, log.trim_to = sub(log.tail, HEADER_SIZE + 1, log.tail_end), 0, -1
  if log.start ~= log.total and units == record_units and is_newest then
    remove_newest(log, window)
    if log.newest <= log.last - window then
      -- Only records that have left hold units: those that no charge has deleted yet.
      log.newest, log.start, log.trim_to = RECORD_OF_LAST, log.total, -1
      log.oldest = log.newest
    end
  end
  if log.start == log.total then
    -- Nothing is used. The last instant stays, because time never goes back for a pair.
    log.changed, log.tagged, log.trim_from = {}, 0, -1
    log.front_byte, log.count, log.rest, log.live_until = 0, 1, '', 0
  elseif units == record_units and not is_newest and record_at == log.oldest then
    skip_oldest(log)
  elseif units == record_units and not is_newest then
    log.front_byte = log.front + EMPTY_RECORDS
  end

  refund_from(i + 1)
  write_log(log, window, precision)
end
