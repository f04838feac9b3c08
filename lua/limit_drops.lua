-- Purpose: part of charge_log.lua, for a log of which more than 2,048 blocks have left: the next charges delete the
--   others. Until then, the log begins with a record that has left, or with one that holds no units.
-- KEYS, ARGV: not read. Reply: none.
-- Units: instants, windows and waits in microseconds, usage in quota units.

-- Returns the position of this record, its instant and its start, the records of the tail, the front byte, the number
-- of blocks to delete, and the units that tags add to the first block.
return function(empty_records, LOG, READER)
  local find_record, log_from = INCLUDE 'find_record.lua', INCLUDE 'log_from.lua'
  local stored_first = front + 1 + BLOCK_RECORDS * MAX_DROPPED_BLOCKS
  local first, oldest, _, source, source_offset, found_start =
    find_record(READER, LOG, stored_first, stored_first + 1, stored_first, ANY_INSTANT, ANY_UNITS)
  local start, rest, front_byte, dropped_blocks, next_added =
    log_from(READER, LOG, first, found_start, source, source_offset)
  if empty_records >= EMPTY_RECORDS then front_byte = front_byte + EMPTY_RECORDS end
  return first, oldest, start, rest, front_byte, dropped_blocks, next_added
end
