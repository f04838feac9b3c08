-- Purpose: searches a log: a LIST of blocks of 8 records, then the tail, which is the header, the records in front of
--   the blocks, and the records behind them. README.md has the layout.
-- KEYS, ARGV: not read. Reply: none.
-- Units: instants in microseconds, starts in quota units modulo 2^40, offsets in bytes.

-- A record is identified by its position. The oldest record has position 0 and is in the header.

-- Finds the first record in RANGE at `instant` or later whose start is at least `units` above `base`. The search reads
-- the probe first, continues from there in growing steps, and ends by bisection. If the record is far from the probe, the
-- bisection is of all other positions. A search for units needs a RANGE up to the end of the log.
--
-- Returns the record's position (`high` if there is none), its instant, the instant of the last record passed over, where
-- the record is (its block, or the tail, and its offset there), and its start as it is stored.
return function(READER, LOG, RANGE, instant, base, units)
  local at, passed_at, source, source_offset, start, block_index, block
  local step, added = 1, 0
  if tagged > 0 and units > 0 then
    -- The tags add other units to each block. So this first finds the block of the record, from `nearest` to `last`, unless
    -- the record is in front of the blocks or behind those with tags.
    local nearest, last, is_found, tag, read, last_at, last_start, _ = number, number + tagged - 1
    -- Returns the units of a block's tag, the block, and the instant and the start of its last record.
    local function read_block(index)
      -- Servers before Redis 7 walk from the end of the list that the sign of the index names.
      local element = call('LINDEX', key, 2 * index > blocks and index - blocks - 1 or index)
      if element and #element == BLOCK_SIZE then return 0, element, parse(RECORD_FORMAT, element, LAST_RECORD_OFFSET) end
      if not element or #element ~= TAGGED_BLOCK_SIZE then error('FOREIGNVALUE ' .. key) end
      local element_at, element_start, element_tag = parse(RECORD_AND_TAG_FORMAT, element, LAST_RECORD_OFFSET)
      return element_tag, element, element_at, element_start
    end
    if low > front + 1 then
      nearest = number + (low - front - 1 - (low - front - 1) % BLOCK_RECORDS) / BLOCK_RECORDS
    elseif low <= front then
      last_at, last_start = parse(RECORD_FORMAT, tail, HEADER_SIZE + 1 - RECORD_SIZE + RECORD_SIZE * front)
      is_found = (last_start - base) % START_MODULUS >= units
      if is_found then high = front + 1 else passed_at = last_at end
    end
    if not is_found and nearest == number and probe <= front + BLOCK_RECORDS then
      _, block, last_at, last_start = read_block(0)
      is_found, block_index = (last_start + first_added - base) % START_MODULUS >= units, 0
      if is_found then
        low, high, added = math.max(low, front + 1), front + BLOCK_RECORDS + 1, first_added
      else
        nearest, passed_at = number + 1, last_at
      end
    end
    if not is_found then
      -- Descends the tree. The blocks up to `passed` are passed over, and the record is in one of the next `span` blocks or
      -- behind the last one with a tag. The tag of the middle one covers the first half.
      local passed, span = nearest - 1, 1
      while passed - passed % span + span <= last do span = 2 * span end
      passed = passed - passed % span
      while span > 1 do
        span = span / 2
        local middle = passed + span
        if middle < nearest then
          passed = middle
        elseif middle <= last then
          tag, read, last_at, last_start = read_block(middle - number)
          if (last_start + added + tag - base) % START_MODULUS >= units then
            added, block_index, block = added + tag, middle - number, read
          else
            passed, passed_at = middle, last_at
          end
        end
      end
      local begin = front + 1 + BLOCK_RECORDS * (passed + 1 - number)
      low = math.max(low, begin)
      if passed < last then high = begin + BLOCK_RECORDS end
    end
    if probe < low or probe >= high then probe = (low + high - (low + high) % 2) / 2 end
  end
  while low < high do
    local element, offset = tail, HEADER_SIZE + 1 - RECORD_SIZE + RECORD_SIZE * probe
    -- The position among the records of all blocks.
    local inner = probe - front - 1
    if inner >= BLOCK_RECORDS * blocks then
      if inner >= 0 then offset = offset - BLOCK_SIZE * blocks end
    elseif inner >= 0 then
      offset = 1 + RECORD_SIZE * (inner % BLOCK_RECORDS)
      inner = (inner - inner % BLOCK_RECORDS) / BLOCK_RECORDS
      if inner ~= block_index then
        block_index, block = inner, call('LINDEX', key, inner == 0 and '0' or inner)
        if not block or #block ~= BLOCK_SIZE and (#block ~= TAGGED_BLOCK_SIZE or inner >= tagged) then
          error('FOREIGNVALUE ' .. key)
        end
      end
      element = block
    end
    local probed_at, probed_start = parse(RECORD_FORMAT, element, offset)
    if probed_at >= instant and (probed_start + added - base) % START_MODULUS >= units then
      high, at, start, source, source_offset, probe = probe, probed_at, probed_start, element, offset, probe - step
    else
      low, passed_at, probe = probe + 1, probed_at, probe + step
    end
    step = step < MAX_STEP and step * 8 or MAX_RECORDS
    if probe < low or probe >= high then probe = (low + high - (low + high) % 2) / 2 end
  end
  return low, at, passed_at, source, source_offset, start
end
