-- Purpose: part of the types that store a log: reads the log of pair `i`. Its lines are a part of the function of a
--   type, because each value that a function takes or returns costs a tenth of a percent of a check.
-- KEYS: keys[i] is the LIST of pair `i`.
-- ARGV: not read.
-- Reply: none.
-- Units: instants, windows and waits in microseconds, usage in quota units.

-- Reads what counts of the log, at the instant `at`. `used` is the usage. `first` is the position of the oldest record
-- in the window, and `oldest` and `start` are its fields. `rest` is the records of the tail if some have left.
-- `source` and `source_offset` are where the oldest record is, until `log_from` has read the rest.
local key, purpose = keys[i], args[2]
local at, used, first, dropped_blocks, tree, tagged, rest, source, source_offset, next_added = now, 0, 0, 0, '', 0
local generation, last, newest, oldest, start, total, front_byte, count, front, blocks, number, first_added
local tail = call('LINDEX', key, '-1')
if tail then
  if #tail == SHORT_SIZE then
    -- The only record is that of the last charge. The instant of a bucket is its end.
    local sum
    generation, last, total, sum = parse(SHORT_FORMAT, tail)
    if sum ~= (last + total) % CHECK_MODULUS + 1 then error('FOREIGNVALUE ' .. key) end
    newest, start, front_byte, count, front, blocks = last, 0, 0, 1, 0, 0
    if parameter > 0 then newest = last - last % parameter + parameter end
    oldest = newest
  else
    local in_tail = (#tail - HEADER_SIZE) / RECORD_SIZE
    if in_tail < 0 or in_tail % 1 > 0 then
      -- The log has tags, or the value is foreign.
      tree, in_tail = sub(tail, -TREE_SIZE), (#tail - HEADER_SIZE - TREE_SIZE) / RECORD_SIZE
      if in_tail < 0 or in_tail % 1 > 0 then error('FOREIGNVALUE ' .. key) end
      number, tagged, first_added = parse(TREE_FORMAT, tree)
      if number < 1 then error('FOREIGNVALUE ' .. key) end
    end
    generation, last, newest, oldest, start, total, front_byte, count = parse(HEADER_FORMAT, tail)
    front, blocks = front_byte % EMPTY_RECORDS, (count - 1 - in_tail) / BLOCK_RECORDS
    if in_tail < front or in_tail > front + BLOCK_RECORDS or blocks < tagged or blocks % 1 > 0
      or oldest > newest or newest > last + window or last > newest + window then
      error('FOREIGNVALUE ' .. key)
    end
  end
  -- If the clock is behind the last charge by at most a window, time stands still. If it is behind by more, the log
  -- is foreign and counts as empty.
  if last <= now + window then
    if last > now then at = last end
    -- A record at this instant or before has left the window.
    if newest > at - window then used = (total - start) % START_MODULUS end
  end
  if used > 0 and oldest <= at - window then
    local next_at, next_start = 0
    if front_byte == front and (front > 0 or blocks == 0 and count > 1) then
      next_at, next_start = parse(RECORD_FORMAT, tail, HEADER_SIZE + 1)
    end
    if next_at > at - window then
      -- The usual case: only the oldest record has left, and the tail has the next one.
      first, oldest, start, rest = 1, next_at, next_start, sub(tail, HEADER_SIZE + RECORD_SIZE + 1, -1 - #tree)
      if front > 0 then front_byte = front_byte - 1 end
    else
      -- The first probe is the position that even arrivals would have.
      local guess = math.floor((at - window - oldest) / (newest - oldest) * (count - 1))
      local find_record, _ = INCLUDE 'find_record.lua'
      first, oldest, _, source, source_offset, start =
        find_record(READER, LOG, 1, count, math.min(guess + 1, count - 1), at - window + 1, ANY_UNITS)
      if not source then error('FOREIGNVALUE ' .. key) end
      if tagged > 0 or front_byte > front then
        local skip_empty = INCLUDE 'skip_empty.lua'
        first, oldest, start, front_byte, rest, dropped_blocks, next_added =
          skip_empty(OLDEST, front_byte, count, find_record, LOG, READER)
        source = nil
      end
      -- If all blocks leave the list, no search has read the element after them.
      if blocks > 0 and first > front + BLOCK_RECORDS * (blocks - 1) and call('LINDEX', key, blocks) ~= tail then
        error('FOREIGNVALUE ' .. key)
      end
    end
    used = (total - start) % START_MODULUS
  end
end
