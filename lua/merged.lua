-- Purpose: the merged script. Decides several checks in one call, one after another, each as the check
--   script would. A run is a number of equal checks: those that fit are charged as one record.
-- KEYS: for each run, one key per pair.
-- ARGV: [1] the runs; [2] the purpose: absent or empty to charge, `r` to reserve. README.md has the fields of a run.
-- Reply: the clock reading, and then the outcome of each run. README.md has the fields.
-- Units: instants in microseconds, costs in quota units.
INCLUDE 'clock.lua'
local function_of_type, decide = INCLUDE 'types.lua', INCLUDE 'decide.lua'
local multiply, count_fitting = INCLUDE 'multiply.lua', INCLUDE 'count_fitting.lua'

-- Decides a run of `count` checks: first as if all of them were one check. If this is denied, it has changed nothing, and
-- shows how many fit. These are charged, and the others are denied.
--
-- Returns the number of admitted checks, or why no check is decided: FULL or the clock reading. Also returns the statuses of
-- the last admitted check and of a denied check, as far as there are any.
local function decide_run(pair_count, count, decide, CONTEXT)
  local check, denied_statuses = args[1], ''
  args[1] = multiply(check, pair_count, count, parse, pack, sub)
  local admitted, full, statuses = decide(1, true, false, CONTEXT)
  if not admitted then
    if count == 1 then return 0, statuses end
    count, full, statuses = count_fitting(check, pair_count, count, statuses, parse), false, ''
    if count > 0 then
      args[1] = multiply(check, pair_count, count, parse, pack, sub)
      full, statuses = select(2, decide(1, true, false, CONTEXT))
    end
    -- A full log has not been charged. Therefore the others would find it full, too.
    if not full then
      args[1] = check
      denied_statuses = select(3, decide(1, true, false, CONTEXT))
    end
  end
  if full then return full, '' end
  return count, statuses .. denied_statuses
end

local runs, purpose, first_key, offset = ARGV[1], ARGV[2], 1, 1
local replies = { pack(CLOCK_FORMAT, now) }
while offset <= #runs do
  local pair_count, count = parse(RUN_FORMAT, runs, offset)
  local deadlines = offset + RUN_SIZE
  local last_deadline = deadlines + CLOCK_SIZE * (count - 1)
  local next_offset = last_deadline + CLOCK_SIZE + PAIR_SIZE * pair_count + GENERATION_SIZE
  -- The functions see the keys and the arguments of this run only: those of its last check.
  local keys = { unpack(KEYS, first_key, first_key + pair_count - 1) }
  local args = { sub(runs, last_deadline, next_offset - 1), purpose }
  local exceeded = 0
  while exceeded < count and now > parse(CLOCK_FORMAT, runs, deadlines + CLOCK_SIZE * exceeded) do
    exceeded = exceeded + 1
  end
  local admitted, statuses = 0, ''
  if exceeded < count then
    local is_decided
    is_decided, admitted, statuses = pcall(decide_run, pair_count, count - exceeded, decide, CONTEXT)
    if not is_decided then
      -- An error fails the checks of this run alone.
      local text = type(admitted) == 'table' and admitted.err or admitted
      -- The error of a command begins with a code, except in older servers.
      if not text:find('^%u+ ') then text = 'ERR ' .. text end
      admitted, statuses = MERGED_ERROR, pack(TEXT_FORMAT, #text) .. text
    elseif admitted == FULL then
      admitted = MERGED_FULL
    elseif type(admitted) == 'string' then
      -- The clock is outside of the calendar periods of the run.
      exceeded, admitted = count, 0
    end
  end
  replies[#replies + 1] = pack(RUN_FORMAT, exceeded, admitted) .. statuses
  first_key, offset = first_key + pair_count, next_offset
end
return table.concat(replies)
