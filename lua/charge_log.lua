-- Purpose: part of the types that store a log: charges pair `i`. Its lines are a part of the function of a type, after
--   read_log.lua.
-- KEYS: keys[i] is the LIST of pair `i`.
-- ARGV: args[1] has the generation in its last 7 bytes.
-- Reply: none.
-- Units: instants, windows and waits in microseconds, usage in quota units.

-- Charges `cost` units at the instant `record_at`. `is_joined` is whether the newest record takes them. For a peek,
-- changes only the variables. The short tail states no record of the next bucket: it is after `at` by more than a bucket.
if used == 0 then
  generation, oldest = sub(args[1], -GENERATION_SIZE), record_at
  if purpose ~= PEEK then
    if tail then call('UNLINK', key) end
    if record_at <= at + parameter then
      call('RPUSH', key, pack(SHORT_FORMAT, generation, at, cost, (at + cost) % CHECK_MODULUS + 1))
    else
      call('RPUSH', key, pack(HEADER_AND_RECORDS_FORMAT, generation, at, record_at, record_at, 0, cost, 0, 1, ''))
    end
    local reply = redis.pcall('PEXPIRE', key, math.ceil((record_at - now + window * LIFETIME) / 1000) + extra_ttl)
    if reply ~= 1 then
      call('UNLINK', key)
      error(reply.err, 0)
    end
  end
elseif purpose ~= PEEK then
  local stored_oldest, stored_start, stored, block = oldest, start
  if source then
    local log_from, _ = INCLUDE 'log_from.lua'
    _, rest, front_byte, dropped_blocks = log_from(READER, LOG, first, start, source, source_offset)
  end
  rest = rest or sub(tail, HEADER_SIZE + 1, -1 - #tree)
  if dropped_blocks > MAX_DROPPED_BLOCKS then
    local limit_drops, counted_first = INCLUDE 'limit_drops.lua', first
    first, stored_oldest, stored_start, rest, front_byte, dropped_blocks, next_added = limit_drops(front_byte, LOG, READER)
    -- A record in the window that is not counted holds no units. The next check skips it like one that has left.
    if first < counted_first and stored_oldest > at - window then stored_oldest = at - window end
  end
  if dropped_blocks > 0 then
    if tagged > dropped_blocks then
      tree = pack(TREE_FORMAT, number + dropped_blocks, tagged - dropped_blocks, next_added)
    else
      tree = ''
    end
  end
  if is_joined and count - first == 1 and record_at <= at + parameter then
    stored = pack(SHORT_FORMAT, generation, at, used + cost, (at + used + cost) % CHECK_MODULUS + 1)
  elseif is_joined then
    stored = pack(HEADER_AND_RECORDS_FORMAT, generation, at, record_at, stored_oldest, stored_start, total + cost,
      front_byte, count - first, rest)
  else
    local records, front_size = rest, RECORD_SIZE * (front_byte % EMPTY_RECORDS)
    if #rest == front_size + BLOCK_SIZE then
      -- The records behind the blocks become a block, and the tail becomes a new element.
      records, block = sub(rest, 1, front_size), sub(rest, front_size + 1)
    end
    stored = pack(HEADER_RECORDS_AND_RECORD_FORMAT, generation, at, record_at, stored_oldest, stored_start, total + cost,
      front_byte, count - first + 1, records, record_at, total)
  end
  if tree ~= '' then stored = stored .. tree end
  -- The first record in each quarter of a window extends the time to live to a window and a quarter.
  if record_at - record_at % (window / EXTENSIONS) > newest then
    call('PEXPIRE', key, math.ceil((record_at - now + window * LIFETIME) / 1000) + extra_ttl)
  end
  -- If a command after this LSET fails, another LSET restores the log. README.md, "Order of writes", has the reason.
  call('LSET', key, '-1', block or stored)
  if dropped_blocks > 0 then
    local reply = redis.pcall('LTRIM', key, dropped_blocks == 1 and '1' or dropped_blocks, '-1')
    if reply.err then
      call('LSET', key, '-1', tail)
      error(reply.err, 0)
    end
  end
  if block then
    local reply = redis.pcall('RPUSH', key, stored)
    if type(reply) == 'table' then
      -- The log without this charge. It no longer has the records that LTRIM has deleted.
      call('LSET', key, '-1', pack(HEADER_AND_RECORDS_FORMAT, generation, at, newest, stored_oldest, stored_start,
        total, front_byte, count - first, rest) .. tree)
      error(reply.err, 0)
    end
  end
end
used, newest = used + cost, record_at
