-- Purpose: the type in flight: counts the units that requests hold. Decides pair `i` and the pairs after it.
-- KEYS: keys[i] is the string of the entries of all holders, and keys[i - 1] that of the numbers of this holder.
-- ARGV: args[2] is the purpose. A pair has the fields of two: those before it are the acquisition.
-- Reply: the statuses of pair `i` and of the pairs after it, in order; that of an acquisition means nothing.
-- Units: instants in microseconds, units in quota units.

-- Decides the pair, as types.lua describes. `window` is the hold time.
return function(i, admitted, full, PAIR, TYPE, CONTEXT)
  local purpose, is_pair, verdict, held = args[2], parameter < ACQUISITION, ADMIT, 0
  local number, id, index, id_high, entries, own, own_end, latest, _
  if is_pair then
    number, _, id, index = parse(PAIR_FORMAT, args[1], CLOCK_SIZE + 1 + PAIR_SIZE * (i - 2))
    -- It has the index of the number, and the upper 16 bits of the identity of the holder.
    local place = index % ACQUISITION
    index = place % MAX_NUMBERS
    id_high = (place - index) / MAX_NUMBERS
    local read_holders = INCLUDE 'read_holders.lua'
    held, entries, own, own_end, _, latest = read_holders(keys[i], window, id, id_high, now, READER)
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
      local numbers, stored = keys[i - 1], pack(NUMBER_FORMAT, number, cost)
      local lifetime = math.ceil(window / 1000) + extra_ttl
      -- Without its numbers, what the holder has held before is lost.
      if own and call('PEXPIRE', numbers, lifetime) == 1 then
        -- A number whose release was lost has no place of its own any longer.
        local start = NUMBER_SIZE * index
        local before = call('GETRANGE', numbers, start, start + NUMBER_SIZE - 1)
        if #before == NUMBER_SIZE then
          local _, released = parse(NUMBER_FORMAT, before)
          own = own - released
        end
        call('SETRANGE', numbers, start, stored)
      else
        own = 0
        call('SET', numbers, string.rep(NO_NUMBER, index) .. stored, 'PX', lifetime)
      end
      own_end = math.max(own_end, now + window)
      latest = math.max(latest, own_end)
      entries = entries .. pack(HOLDER_FORMAT, id, id_high, own_end, own + cost)
      call('SET', keys[i], pack(CLOCK_FORMAT, now) .. entries, 'PX', math.ceil((latest - now) / 1000) + extra_ttl)
    end
  end
  local receipt = ''
  if HAS_RECEIPTS then receipt = NO_CHARGE end
  return admitted, full, pack(STATUS_FORMAT, now, verdict, math.max(0, quota - held), 0, 0, 0) .. receipt .. others
end
