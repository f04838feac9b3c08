-- Purpose: the type in flight: counts the units that requests hold. Decides pair `i` and the pairs after it.
-- KEYS: keys[i] is the string of the entries of all holders, and keys[i - 1] that of the numbers of this holder.
-- ARGV: args[2] is the purpose. A pair has the fields of two: those before it are the acquisition.
-- Reply: the statuses of pair `i` and of the pairs after it, in order; that of an acquisition means nothing.
-- Units: instants in microseconds, units in quota units.

-- Decides the pair, as types.lua describes. `window` is the hold time.
local purpose, receipt, verdict, acquisition, number, id, place, _ = args[2], '', ADMIT, ''
if HAS_RECEIPTS then receipt = NO_CHARGE end
if parameter >= ACQUISITION and i == #keys then
  -- Its pair is a shadow pair, and decided later.
  statuses = NO_STATUS .. receipt
else
  if parameter >= ACQUISITION then
    acquisition = NO_STATUS .. receipt
    number, id, place, i = quota, window, parameter, i + 1
    quota, cost, window = parse(PAIR_FORMAT, args[1], CLOCK_SIZE + 1 + PAIR_SIZE * (i - 1))
  else
    number, _, id, place = parse(PAIR_FORMAT, args[1], CLOCK_SIZE + 1 + PAIR_SIZE * (i - 2))
  end
  -- It has the index of the number, the upper 16 bits of the identity of the holder, and whether the holder has no other number.
  place = place % ACQUISITION
  local is_alone, kept = place >= ALONE, nil
  if is_alone then place = place - ALONE end
  local index = place % MAX_NUMBERS
  local key, numbers, id_high = keys[i], keys[i - 1], (place - index) / MAX_NUMBERS
  local read_holders = INCLUDE 'read_holders.lua'
  local held, latest, own, own_end, own_offset, value, step = read_holders(key, window, id, id_high, now, READER)
  if is_alone and own and own > 0 then
    local keep_newer = INCLUDE 'keep_newer.lua'
    own, kept = keep_newer(numbers, number, call, parse)
  elseif own and i < #keys then
    -- A foreign value is an error before the pairs after this one are charged.
    call('GETRANGE', numbers, '0', '0')
  end
  if own then held = held + own end
  -- What is used beyond the quota is not held.
  if EXCEEDS_QUOTA then cost = 0 end
  if cost > 0 and held + cost > quota then
    admitted, verdict = false, NEVER
    if cost <= quota then verdict = UNKNOWN_WAIT end
  end

  INCLUDE 'decide_next.lua'

  if admitted and not full and cost > 0 then
    held = held + cost
    if purpose ~= PEEK then
      local ends_at, stored = now + window, pack(NUMBER_FORMAT, number, cost)
      -- The first acquisition in each quarter of a hold time extends the time to live. So does one that shortens the entry.
      local is_extended = step == 0 and own_end <= ends_at and own_end - window >= now - now % (window / EXTENSIONS)
      if kept then call('SET', numbers, kept, 'PX', math.ceil(window * LIFETIME / 1000) + extra_ttl) end
      if not own or call('SETRANGE', numbers, NUMBER_SIZE * index, stored) % NUMBER_SIZE == 0 then
        local write_number = INCLUDE 'write_number.lua'
        own = write_number(numbers, index, stored, own, window, extra_ttl)
      elseif not is_extended then
        call('PEXPIRE', numbers, math.ceil(window * LIFETIME / 1000) + extra_ttl)
      end
      if is_extended then
        -- Only the last write and the entry of this holder change.
        local before = sub(value, CLOCK_SIZE + 1, own_offset - 1)
        call('SETRANGE', key, '0', pack(CLOCK_FORMAT, now) .. before .. pack(HOLDER_FORMAT, id, id_high, ends_at, own + cost))
      else
        local write_holders = INCLUDE 'write_holders.lua'
        write_holders(key, HOLDERS, id, id_high, ends_at, own + cost, now, extra_ttl)
      end
    end
  end
  local remaining = quota - held
  if remaining < 0 then remaining = 0 end
  statuses = acquisition .. pack(STATUS_FORMAT, now, verdict, remaining, 0, 0, 0) .. receipt .. statuses
end
