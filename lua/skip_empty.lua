-- Purpose: part of read_log.lua, for a log that had deep refunds: reads the log from the first record in the window
--   on, and skips records without units.
-- KEYS, ARGV: not read. Reply: none.
-- Units: instants, windows and waits in microseconds, usage in quota units.

-- Returns the position, the instant and the start of the record with which the log begins, the front byte, the records
-- of the tail, the number of blocks to delete, and the units that tags add to the first block.
return function(OLDEST, front_byte, count, find_record, LOG, READER)
  local log_from, may_be_empty = INCLUDE 'log_from.lua', front_byte > front
  local rest, dropped_blocks, next_added
  start, rest, front_byte, dropped_blocks, next_added = log_from(READER, LOG, first, start, source, source_offset)
  if may_be_empty then
    -- Skips records without units, up to the first record of the instant that holds units. Usually this record holds some,
    -- and the next one is in front.
    local _, beyond, holder_at, start_after
    if front_byte > 0 then _, start_after = parse(RECORD_FORMAT, rest) end
    if not start_after or start_after == start then
      beyond, _, holder_at = find_record(READER, LOG, first + 1, count, first + 1, ANY_INSTANT, start, 1)
    end
    if holder_at and holder_at > oldest then
      first, oldest, _, source, source_offset, start =
        find_record(READER, LOG, first + 1, beyond, beyond - 1, holder_at, ANY_UNITS)
      if not source then error('FOREIGNVALUE ' .. key) end
      start, rest, front_byte, dropped_blocks, next_added = log_from(READER, LOG, first, start, source, source_offset)
    end
    front_byte = front_byte + EMPTY_RECORDS
  end
  return first, oldest, start, front_byte, rest, dropped_blocks, next_added
end
