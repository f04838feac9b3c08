-- Purpose: the last part of the merged script. Decides several checks in one call, one after another, each as the check
--   script would. A run is a number of equal checks: those that fit are charged as one record.
-- KEYS: for each run, one key per pair.
-- ARGV: [1] the runs; [2] the purpose: absent or empty to charge, `r` to reserve. README.md has the fields of a run.
-- Reply: the clock reading, and then the outcome of each run. README.md has the fields.
-- Units: instants in microseconds, costs in quota units.

-- Returns a check whose costs are `times` those of `check`.
local function multiply(check, pair_count, times)
  if times == 1 then return check end
  local fields = {}
  for i = 1, pair_count do
    local quota, cost, window, precision = parse(PAIR_FORMAT, check, PAIR_SIZE * i - (PAIR_SIZE - 1))
    fields[i] = pack(PAIR_FORMAT, quota, cost * times, window, precision)
  end
  return table.concat(fields) .. sub(check, -GENERATION_SIZE)
end

-- Returns how many of `count` checks fit into what the statuses of a denied check say remains.
local function count_fitting(check, pair_count, count, statuses)
  for i = 1, pair_count do
    local _, cost = parse(PAIR_FORMAT, check, PAIR_SIZE * i - (PAIR_SIZE - 1))
    -- A denied check has as many bytes of receipts for each pair.
    local remaining = parse(REMAINING_FORMAT, statuses, #statuses / pair_count * (i - 1) + REMAINING_PLACE)
    if cost > 0 then count = math.min(count, math.floor(remaining / cost)) end
  end
  return count
end

-- Decides a run of `count` checks: first as if all of them were one check. If this is denied, it has changed nothing, and
-- shows how many fit. These are charged, and the others are denied.
--
-- Returns the number of admitted checks, or MERGED_FULL. Also returns the statuses of the last admitted check and of a
-- denied check, as far as there are any.
local function decide_run(pair_count, count, CONTEXT)
  local check, denied_statuses = ARGV[1], ''
  ARGV[1] = multiply(check, pair_count, count)
  local admitted, full, statuses = decide(1, true, false, CONTEXT)
  if not admitted then
    if count == 1 then return 0, statuses end
    count, admitted, full, statuses = count_fitting(check, pair_count, count, statuses), true, false, ''
    if count > 0 then
      ARGV[1] = multiply(check, pair_count, count)
      admitted, full, statuses = decide(1, true, false, CONTEXT)
    end
    -- A full log has not been charged. Therefore the others would find it full, too.
    if not full then
      ARGV[1] = check
      denied_statuses = select(3, decide(1, true, false, CONTEXT))
    end
  end
  if full then return MERGED_FULL, '' end
  return count, statuses .. denied_statuses
end

local all_keys, runs, purpose, first_key, place = KEYS, ARGV[1], ARGV[2], 1, 1
local replies = { pack(CLOCK_FORMAT, now) }
while place <= #runs do
  local pair_count, count = parse(RUN_FORMAT, runs, place)
  local deadlines = place + RUN_SIZE + PAIR_SIZE * pair_count
  local next_place = deadlines + CLOCK_SIZE * count + GENERATION_SIZE
  -- The functions see the keys and the arguments of this run only.
  local KEYS = { unpack(all_keys, first_key, first_key + pair_count - 1) }
  local ARGV = { sub(runs, place + RUN_SIZE, next_place - 1), purpose }
  local exceeded = 0
  while exceeded < count and now > parse(CLOCK_FORMAT, runs, deadlines + CLOCK_SIZE * exceeded) do
    exceeded = exceeded + 1
  end
  local admitted, statuses = 0, ''
  if exceeded < count then
    local is_decided
    is_decided, admitted, statuses = pcall(decide_run, pair_count, count - exceeded, CONTEXT)
    if not is_decided then
      -- An error fails the checks of this run alone.
      local text = type(admitted) == 'table' and admitted.err or admitted
      -- The error of a command begins with a code, except in older servers.
      if not text:find('^%u+ ') then text = 'ERR ' .. text end
      admitted, statuses = MERGED_ERROR, pack(TEXT_FORMAT, #text) .. text
    end
  end
  replies[#replies + 1] = pack(RUN_FORMAT, exceeded, admitted) .. statuses
  first_key, place = first_key + pair_count, next_place
end
return table.concat(replies)
