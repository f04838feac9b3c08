-- Purpose: the type calendar period: counts a day, week, month or year. Decides pair `i` and the pairs after it.
-- KEYS: keys[i] is the string of pair `i`.
-- ARGV: args[2] is the purpose.
-- Reply: the statuses of pair `i` and of the pairs after it, in order. If the clock is outside of the periods that the client
--   has sent, the clock reading in place of a full log.
-- Units: instants and waits in microseconds, usage in quota units.

-- Decides the pair, as types.lua describes. `parameter` is the boundary between two periods, and `window` has their lengths.
local key, purpose, after = keys[i], args[2], window % PERIOD_UNIT
local begin = parameter * MINUTE
local ends_at = begin + after * MINUTE
if now < begin then
  ends_at = begin
  begin = begin - (window - after) / PERIOD_UNIT * MINUTE
end
-- No pair is charged, because none finds room.
if now < begin or now >= ends_at then
  admitted, full, statuses = true, pack(CLOCK_FORMAT, now), ''
else
  -- For this policy, usage counts until `ends_at`. For another one, it may count until `kept_until`.
  local at, used, kept_until, verdict, has_time_to_live, generation = now, 0, ends_at, ADMIT, false, nil
  local value = call('GET', key)
  if value then
    if #value ~= PERIOD_SIZE then error('FOREIGNVALUE ' .. key) end
    local last, stored_begin, stored_end, stored = parse(PERIOD_NUMBERS_FORMAT, value, GENERATION_SIZE + 1)
    if last < stored_begin or last >= stored_end then error('FOREIGNVALUE ' .. key) end
    -- If the clock is behind the last charge by at most the period, time stands still. If it is behind by more, the value is
    -- foreign and counts as empty.
    if last <= now then
      -- Before the stored end, a later begin starts a period only if nothing was charged since. Otherwise, policies with other
      -- begins would start several periods in one. A charge does not move the stored end: that of a busy client might never come.
      if stored > 0 and now < stored_end and (begin <= stored_begin or begin <= last) then
        if begin < stored_begin then verdict = EARLIER_PERIOD end
        begin, used, kept_until, has_time_to_live = stored_begin, stored, stored_end, true
        ends_at = math.min(ends_at, stored_end)
      end
    elseif last <= now + stored_end - stored_begin then
      at, begin, used, ends_at, kept_until, has_time_to_live = last, stored_begin, stored, stored_end, stored_end, true
    end
    -- The generation is at the begin of the value, and `pack` reads no more of it.
    if used > 0 then generation = value end
  end
  local retry_after = 0
  if cost > 0 and used + cost > quota and not EXCEEDS_QUOTA then
    admitted = false
    if cost <= quota then
      verdict, retry_after = verdict + WAIT, ends_at - now
    else
      verdict = verdict + NEVER
    end
  end

  INCLUDE 'decide_next.lua'

  local receipt = ''
  if HAS_RECEIPTS then receipt = NO_CHARGE end
  if admitted and not full and cost > 0 then
    used = used + cost
    if used > MAX_CALENDAR_USED then used = MAX_CALENDAR_USED end
    if purpose ~= PEEK then
      generation = generation or sub(args[1], -GENERATION_SIZE)
      local stored = pack(PERIOD_FORMAT, generation, at, begin, kept_until, used)
      if has_time_to_live then
        call('SETRANGE', key, '0', stored)
      else
        call('SET', key, stored, 'PX', math.ceil((kept_until - now) / 1000) + extra_ttl)
      end
    end
    if HAS_RECEIPTS then receipt = pack(RECEIPT_FORMAT, generation, at, 0) end
  end
  local remaining, reset_after, next_after = quota - used, 0, ends_at - now
  if remaining < 0 then remaining = 0 end
  if used > 0 then reset_after = next_after end
  statuses = pack(STATUS_FORMAT, now, verdict, remaining, retry_after, next_after, reset_after) .. receipt .. statuses
end
