-- Purpose: part of both scripts. Searches a log: a LIST of blocks of 8 records, then the tail, which is the header, the
-- records in front of the blocks, and the records behind them. README.md has the layout.
-- KEYS, ARGV: not read; the key and the tail are parameters. Reply: none.
-- Units: instants in microseconds, starts in quota units modulo 2^40, offsets in bytes.
--
-- A record is identified by its position. The oldest record has position 0 and is in the header.

-- Finds the first record in RANGE at `instant` or later whose start is at least `units` above `base`. The search reads
-- the probe first, continues from there in growing steps, and ends by bisection.
--
-- Returns the record's position (`high` if there is none), its instant, its start, and the instant of the last record
-- passed over. If there is such a record, also returns the parts of a log that begins with it: the records of its tail,
-- the number of records in front of its blocks, and the number of blocks to delete.
local function find_record(READER, LOG, RANGE, instant, base, units)
  local at, start, passed_at, source, source_offset, block_index, block
  local step = 1
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
        if not block or #block ~= BLOCK_SIZE then error('FOREIGNVALUE ' .. key) end
      end
      element = block
    end
    local probed_at, probed_start = parse(RECORD_FORMAT, element, offset)
    if probed_at >= instant and (probed_start - base) % START_MODULUS >= units then
      high, at, start, source, source_offset, probe = probe, probed_at, probed_start, element, offset, probe - step
    else
      low, passed_at, probe = probe + 1, probed_at, probe + step
    end
    step = step * 2
    if probe < low or probe >= high then probe = (low + high - (low + high) % 2) / 2 end
  end
  if not source then return low, at, start, passed_at end
  local rest, inner = sub(source, source_offset + RECORD_SIZE), low - front - 1
  if inner < 0 then return low, at, start, passed_at, rest, front - low, 0 end
  if inner >= BLOCK_RECORDS * blocks then return low, at, start, passed_at, rest, 0, blocks end
  -- The records of the block after this one are in front now, before those that were behind the blocks.
  return low, at, start, passed_at, rest .. sub(tail, HEADER_SIZE + 1 + RECORD_SIZE * front),
    BLOCK_RECORDS - 1 - inner % BLOCK_RECORDS, (inner - inner % BLOCK_RECORDS) / BLOCK_RECORDS + 1
end
