-- Purpose: the type in flight: counts the units that requests hold. Decides pair `i` and the pairs after it.
-- KEYS: keys[i] is the string of the entries of all holders, and keys[i - 1] that of the numbers of this holder.
-- ARGV: args[2] is the purpose. A pair has the fields of two: those before it are the acquisition.
-- Reply: the statuses of pair `i` and of the pairs after it, in order; that of an acquisition means nothing.
-- Units: instants in microseconds, units in quota units.

-- Decides the pair, as types.lua describes. `window` is the hold time.
return function(i, admitted, full, PAIR, TYPE, CONTEXT)
  local is_pair, purpose, held, own, verdict = parameter < ACQUISITION, args[2], 0, nil, ADMIT
  local number, id, place, others, own_end, latest, _
  if is_pair then
    number, _, id, place = parse(PAIR_FORMAT, args[1], CLOCK_SIZE + 1 + PAIR_SIZE * (i - 2))
    -- The place has the upper 16 bits of the identity of the holder, and the index of the number.
    place = place % ACQUISITION
    local index = place % MAX_NUMBERS
    local id_high = (place - index) / MAX_NUMBERS
    local read_holders = INCLUDE 'read_holders.lua'
    held, others, own, own_end, _, latest = read_holders(keys[i], window, id, id_high, now, READER)
    held = held + (own or 0)
    -- What is used beyond the quota is not held.
    if EXCEEDS_QUOTA then cost = 0 end
    if cost > 0 and held + cost > quota then
      admitted, verdict = false, NEVER
      if cost <= quota then verdict = UNKNOWN_WAIT end
    end
  end

  INCLUDE 'decide_next.lua'

  if is_pair and admitted and not full and cost > 0 then
    held = held + cost
    if purpose ~= PEEK then
      local index = place % MAX_NUMBERS
      local id_high, lifetime = (place - index) / MAX_NUMBERS, math.ceil(window / 1000) + extra_ttl
      local stored = pack(NUMBER_FORMAT, number, cost)
      -- Without its numbers, what the holder has held before is lost.
      if own and call('PEXPIRE', keys[i - 1], lifetime) == 1 then
        call('SETRANGE', keys[i - 1], NUMBER_SIZE * index, stored)
      else
        own = 0
        call('SET', keys[i - 1], string.rep('\0', NUMBER_SIZE * index) .. stored, 'PX', lifetime)
      end
      own_end = math.max(own_end, now + window)
      latest = math.max(latest, own_end)
      local entry = pack(HOLDER_FORMAT, id, id_high, own_end, own + cost)
      local value = pack(CLOCK_FORMAT, now) .. others .. entry
      call('SET', keys[i], value, 'PX', math.ceil((latest - now) / 1000) + extra_ttl)
    end
  end
  local receipt = ''
  if HAS_RECEIPTS then receipt = NO_CHARGE end
  local remaining = math.max(0, quota - held)
  return admitted, full, pack(STATUS_FORMAT, now, verdict, remaining, 0, 0, 0) .. receipt .. others_statuses
end
