-- Purpose: reads the part of a log that begins with a record.
-- KEYS, ARGV: not read. Reply: none.
-- Units: instants in microseconds, starts in quota units modulo 2^40, offsets in bytes.

-- Returns the parts of a log that begins with a record: its start, the records of its tail, the number of records in front of
-- its blocks, the number of blocks to delete, and the units that tags add to its first block. `start` is as it is stored,
-- and `source` and `source_offset` are where the record is.
return function(READER, LOG, position, start, source, source_offset)
  local rest_at, tail_end, inner = source_offset + RECORD_SIZE, -1, position - front - 1
  if tagged > 0 then tail_end = -TREE_SIZE - 1 end
  if inner < 0 then return start, sub(tail, rest_at, tail_end), front - position, 0 end
  if inner >= BLOCK_RECORDS * blocks then return start, sub(tail, rest_at, tail_end), 0, blocks end
  local index, rest, next_added = (inner - inner % BLOCK_RECORDS) / BLOCK_RECORDS, sub(source, rest_at), 0
  if index < tagged then
    -- The block has the tags of all nodes that cover it: its own, and those of its ancestors.
    local function tag_of(block)
      local element = source
      if block ~= index then element = call('LINDEX', key, 2 * block > blocks and block - blocks - 1 or block) end
      if element and #element == TAGGED_BLOCK_SIZE then return (parse(TAG_FORMAT, element, TAG_OFFSET)) end
      if not element or #element ~= BLOCK_SIZE then error('FOREIGNVALUE ' .. key) end
      return 0
    end
    local node, last, span, own_tag = number + index, number + tagged - 1, 1, tag_of(index)
    -- The nodes between the block and its parent cover the next block, and not this one.
    while node % (2 * span) == 0 do
      if node + span <= last then next_added = next_added + tag_of(node + span - number) end
      span = 2 * span
    end
    local added = own_tag
    if index == 0 then
      added = first_added
    else
      node = node + span
      while node <= last do
        added = added + tag_of(node - number)
        while node % (2 * span) == 0 do span = 2 * span end
        node = node + span
      end
    end
    next_added = (next_added + added - own_tag) % START_MODULUS
    local records = {}
    for record = inner % BLOCK_RECORDS + 1, BLOCK_RECORDS - 1 do
      local record_at, record_start = parse(RECORD_FORMAT, source, 1 + RECORD_SIZE * record)
      records[#records + 1] = pack(RECORD_FORMAT, record_at, (record_start + added) % START_MODULUS)
    end
    start, rest = (start + added) % START_MODULUS, table.concat(records)
  end
  -- The records of the block after this one are in front now, before those that were behind the blocks.
  return start, rest .. sub(tail, HEADER_SIZE + 1 + RECORD_SIZE * front, tail_end), BLOCK_RECORDS - 1 - inner % BLOCK_RECORDS,
    index + 1, next_added
end
