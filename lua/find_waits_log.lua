-- Purpose: part of the types that store a log: decides whether the cost of pair `i` fits. Its lines are a part of the
--   function of a type, after read_log.lua.
-- KEYS, ARGV: not read. Reply: none.
-- Units: instants, windows and waits in microseconds, usage in quota units.

-- Decides the pair. `retry_after` is the wait of a denial. `next_freed_by` is the instant of the record that frees the
-- next unit of the quota; nil if this is the oldest one. Changes `admitted` and `full`.
-- The units that must leave before the cost fits.
local excess, verdict, retry_after, next_freed_by = used + cost - quota, ADMIT, 0
if excess > 0 then
  local freed_by, find_record, passed_at, _
  if excess > 1 or used > quota or EXCEEDS_QUOTA then find_record = INCLUDE 'find_record.lua' end
  if cost > 0 and not EXCEEDS_QUOTA then
    admitted, verdict = false, NEVER
    if cost <= quota then
      -- The instant of the record that frees the last of these units.
      freed_by = oldest
      if excess >= used then
        freed_by = newest
      elseif excess > 1 then
        local guess = math.min(first + math.ceil(excess * (count - first) / used), count - 1)
        _, _, passed_at = find_record(READER, LOG, first + 1, count, guess, ANY_INSTANT, start, excess)
        freed_by = passed_at or oldest
      end
      verdict, retry_after = WAIT, freed_by + window - now
    end
  end
  -- The instant of the record that frees the next unit of the quota: the oldest one, unless more than the quota is used. An
  -- overage is charged in any case.
  if used > quota or EXCEEDS_QUOTA then
    -- The units that must leave.
    local beyond = used - quota + 1
    if EXCEEDS_QUOTA then beyond = math.min(excess, MAX_USED - quota) + 1 end
    if beyond > used then
      next_freed_by = math.huge -- The record of this charge.
    elseif beyond == used then
      next_freed_by = newest
    elseif beyond == excess then
      next_freed_by = freed_by
    else
      local guess = math.min(first + math.ceil(beyond * (count - first) / used), count - 1)
      _, _, passed_at = find_record(READER, LOG, first + 1, count, guess, ANY_INSTANT, start, beyond)
      next_freed_by = passed_at or oldest
    end
  end
end
if cost > 0 and used > 0 and count - first >= MAX_RECORDS then full = FULL end
