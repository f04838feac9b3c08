-- Purpose: part of the check script. Decides a pair whose algorithm is sliding log or sliding buckets, and the pairs
--   after it.
-- KEYS: KEYS[i] is the LIST of pair `i`.
-- ARGV: [1] pair `i` at byte 20 * i - 19, and the generation in the last 7 bytes; [2] the purpose; [4] for a lease, the
--   units of pair `i` at byte 4 * i - 3.
-- Reply: the statuses of pair `i` and of the pairs after it, in order.
-- Units: instants, windows and waits in microseconds, usage in quota units.

-- Decides pair `i` and the pairs after it: reads pair `i`, decides the others, and charges pair `i` if all admit.
-- Therefore every pair is read before the first one is charged.
--
-- `admitted` and `full` are the outcome of the pairs before. Returns whether all pairs admit, whether a log is full,
-- and the statuses from this pair on. The precision is 0 for the sliding log. If it is below 0, `decide_calendar`
-- decides.
local function decide(i, admitted, full, CONTEXT)
  local quota, cost, window, precision = parse(PAIR_FORMAT, ARGV[1], PAIR_SIZE * i - (PAIR_SIZE - 1))
  if precision < 0 then return decide_calendar(i, admitted, full, PAIR, CONTEXT) end
  local key, purpose = KEYS[i], ARGV[2]
  -- `first` is the position of the oldest record in the window. `rest` is the records of the tail if some have left.
  -- `source` and `source_offset` are where the oldest record is, until `log_from` has read the rest.
  local at, used, first, dropped_blocks, rest, source, source_offset, _ = now, 0, 0, 0
  local tree, records_end, tagged, number, first_added, next_added = '', -1, 0
  local generation, last, newest, oldest, start, total, front_byte, count, front, blocks, left_at
  local tail = call('LINDEX', key, '-1')
  if tail then
    local in_tail = (#tail - HEADER_SIZE) / RECORD_SIZE
    if in_tail < 0 or in_tail % 1 > 0 then
      -- The log has tags, or the value is foreign.
      tree, records_end, in_tail = sub(tail, -TREE_SIZE), -TREE_SIZE - 1, (#tail - HEADER_SIZE - TREE_SIZE) / RECORD_SIZE
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
    -- If the clock is behind the last charge by at most a window, time stands still. If it is behind by more, the log
    -- is foreign and counts as empty.
    if last <= now + window then
      if last > now then at = last end
      -- A record at this instant or before has left the window.
      left_at = at - window
      if newest > left_at then used = (total - start) % START_MODULUS end
    end
    if used > 0 and oldest <= left_at then
      local empty_records, next_at, next_start = front_byte - front, 0
      if (front > 0 or blocks == 0 and count > 1) and empty_records == 0 then
        next_at, next_start = parse(RECORD_FORMAT, tail, HEADER_SIZE + 1)
      end
      if next_at > left_at then
        -- The usual case: only the oldest record has left, and the tail has the next one.
        first, oldest, start, rest = 1, next_at, next_start, sub(tail, HEADER_SIZE + RECORD_SIZE + 1, records_end)
        if front > 0 then front_byte = front_byte - 1 end
      else
        -- The first probe is the position that even arrivals would have.
        local guess = math.floor((left_at - oldest) / (newest - oldest) * (count - 1))
        first, oldest, _, source, source_offset, start =
          find_record(READER, LOG, 1, count, math.min(guess + 1, count - 1), left_at + 1, ANY_UNITS)
        if not source then error('FOREIGNVALUE ' .. key) end
        if tagged > 0 or empty_records > 0 then
          start, rest, front_byte, dropped_blocks, next_added = log_from(READER, LOG, first, start, source, source_offset)
          source = nil
        end
      end
      if empty_records > 0 then
        -- Skips records without units, up to the first record of the instant that holds units. Usually this record holds some,
        -- and the next one is in front.
        local beyond, holder_at, start_after
        if front_byte > 0 then _, start_after = parse(RECORD_FORMAT, rest) end
        if not start_after or start_after == start then
          beyond, _, holder_at = find_record(READER, LOG, first + 1, count, first + 1, ANY_INSTANT, start, 1)
        end
        if holder_at and holder_at > oldest then
          local holder, holder_offset
          first, oldest, _, holder, holder_offset, start =
            find_record(READER, LOG, first + 1, beyond, beyond - 1, holder_at, ANY_UNITS)
          if not holder then error('FOREIGNVALUE ' .. key) end
          start, rest, front_byte, dropped_blocks, next_added = log_from(READER, LOG, first, start, holder, holder_offset)
        end
        front_byte = front_byte + empty_records
      end
      -- If all blocks leave the list, no search has read the element after them.
      if blocks > 0 and first > front + BLOCK_RECORDS * (blocks - 1) and call('LINDEX', key, blocks) ~= tail then
        error('FOREIGNVALUE ' .. key)
      end
      used = (total - start) % START_MODULUS
    end
  end

  local verdict, retry_after, freed_by = ADMIT, 0
  -- The units that must leave before the cost fits.
  local excess = used + cost - quota
  if excess > 0 and cost > 0 and purpose ~= OVERAGE then
    admitted = false
    if cost > quota then
      verdict = NEVER
    else
      -- The instant of the record that frees the last of these units.
      freed_by = oldest
      if excess >= used then
        freed_by = newest
      elseif excess > 1 then
        -- The first probe is the position that equal costs would have.
        local guess = math.min(first + math.ceil(excess * (count - first) / used), count - 1)
        local _, _, passed_at = find_record(READER, LOG, first + 1, count, guess, ANY_INSTANT, start, excess)
        freed_by = passed_at or oldest
      end
      verdict, retry_after = WAIT, freed_by + window - now
    end
  end
  -- The instant of the record that frees the next unit of the quota: the oldest one, unless more than the quota is used. An
  -- overage is charged in any case.
  local next_freed_by
  if excess > 0 and (used > quota or purpose == OVERAGE) then
    -- The units that must leave.
    local beyond = used - quota + 1
    if purpose == OVERAGE then beyond = math.min(excess, MAX_USED - quota) + 1 end
    if beyond > used then
      next_freed_by = math.huge -- The record of this charge.
    elseif beyond == used then
      next_freed_by = newest
    elseif beyond == excess then
      next_freed_by = freed_by
    else
      local guess = math.min(first + math.ceil(beyond * (count - first) / used), count - 1)
      local _, _, passed_at = find_record(READER, LOG, first + 1, count, guess, ANY_INSTANT, start, beyond)
      next_freed_by = passed_at or oldest
    end
  end
  if cost > 0 and used > 0 and count - first >= MAX_RECORDS then full = true end

  -- The place of a reservation among the records of its instant. It may need a search, so it comes before any write.
  local ordinal = 0
  if purpose == RESERVE and precision == 0 and used > 0 and newest == at then
    local same_instant = first
    if oldest < at then
      same_instant = find_record(READER, LOG, first + 1, count, count - 1, at, ANY_UNITS)
    end
    ordinal = count - same_instant
  end

  local others = ''
  if i < #KEYS then
    admitted, full, others = decide(i + 1, admitted, full, CONTEXT)
  end

  -- The instant of the record: of a bucket, its end.
  local record_at, receipt, leased = at, '', 0
  if precision > 0 then record_at = at - at % precision + precision end
  -- A plain charge has no purpose, and skips these comparisons.
  if purpose then
    if purpose == RESERVE then
      receipt = NO_CHARGE
    elseif purpose == OVERAGE then
      -- Usage saturates. Only an overage can reach this limit.
      cost = math.min(cost, MAX_USED - used)
    elseif purpose == LEASE then
      receipt = NO_LEASE
      if admitted then
        -- As many units as fit beyond the cost, at most those of the request.
        local wanted = parse(UNITS_FORMAT, ARGV[4], UNITS_SIZE * i - (UNITS_SIZE - 1))
        leased = math.max(0, math.min(wanted, quota - used - cost))
        cost = cost + leased
      end
    end
  end
  if admitted and not full and cost > 0 then
    if used == 0 then
      generation, oldest = sub(ARGV[1], -GENERATION_SIZE), record_at
      if purpose ~= PEEK then
        if tail then call('UNLINK', key) end
        call('RPUSH', key, pack(HEADER_FORMAT, generation, at, record_at, record_at, 0, cost, 0, 1))
        local reply =
          redis.pcall('PEXPIRE', key, math.ceil((record_at - now + window * LIFETIME) / 1000) + extra_ttl)
        if reply ~= 1 then
          call('UNLINK', key)
          error(reply.err, 0)
        end
      end
    else
      if purpose ~= PEEK then
        local stored_oldest, stored_start, stored, block = oldest, start
        if source then
          _, rest, front_byte, dropped_blocks = log_from(READER, LOG, first, start, source, source_offset)
        end
        rest = rest or sub(tail, HEADER_SIZE + 1, records_end)
        if dropped_blocks > MAX_DROPPED_BLOCKS then
          -- The next charges delete the others. Until then, the log begins with a record that has left.
          local stored_first, empty_records = front + 1 + BLOCK_RECORDS * MAX_DROPPED_BLOCKS, front_byte
          first, stored_oldest, _, source, source_offset, stored_start =
            find_record(READER, LOG, stored_first, stored_first + 1, stored_first, ANY_INSTANT, ANY_UNITS)
          stored_start, rest, front_byte, dropped_blocks, next_added =
            log_from(READER, LOG, first, stored_start, source, source_offset)
          if empty_records >= EMPTY_RECORDS then front_byte = front_byte + EMPTY_RECORDS end
        end
        if dropped_blocks > 0 then
          if tagged > dropped_blocks then
            tree = pack(TREE_FORMAT, number + dropped_blocks, tagged - dropped_blocks, next_added)
          else
            tree = ''
          end
        end
        if newest == record_at and precision > 0 then
          -- The charge belongs to the newest bucket.
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
    end
    used, newest = used + cost, record_at
    if purpose then
      if purpose == RESERVE then
        receipt = pack(RECEIPT_FORMAT, generation, record_at, ordinal)
      elseif purpose == LEASE then
        receipt = pack(LEASE_FORMAT, generation, record_at, ordinal, leased)
      end
    end
  end
  local remaining, next_after, reset_after = quota - used, window, 0
  if remaining < 0 then remaining = 0 end
  if used > 0 then
    next_after, reset_after = oldest + window - now, newest + window - now
    if next_freed_by then next_after = math.min(next_freed_by, newest) + window - now end
  end
  local status = pack(STATUS_FORMAT, now, verdict, remaining, retry_after, next_after, reset_after)
  return admitted, full, status .. receipt .. others
end
