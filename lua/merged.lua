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
local replies, known_type, decide_pair = { pack(CLOCK_FORMAT, now) }, nil, nil
-- Runs of one pair share a table of keys, because each table costs about one percent of a check.
local one_key, args = {}, {}
while offset <= #runs do
  -- Most runs are one check. The fields after `count` are then its deadline and those of its first pair.
  local pair_count, count, deadline, quota, cost, window, typed_parameter = parse(RUN_AND_CHECK_FORMAT, runs, offset)
  local deadlines = offset + RUN_SIZE
  local last_deadline = deadlines + CLOCK_SIZE * (count - 1)
  local next_offset = last_deadline + CLOCK_SIZE + PAIR_SIZE * pair_count + GENERATION_SIZE
  -- The functions see the keys and the arguments of this run only: those of its last check.
  local keys = one_key
  if pair_count == 1 then keys[1] = KEYS[first_key] else keys = { unpack(KEYS, first_key, first_key + pair_count - 1) } end
  args[1], args[2] = sub(runs, last_deadline, next_offset - 1), purpose
  local exceeded, is_decided, admitted, statuses = 0, true, 0, ''
  if count > 1 then
    while exceeded < count and now > parse(CLOCK_FORMAT, runs, deadlines + CLOCK_SIZE * exceeded) do
      exceeded = exceeded + 1
    end
    if exceeded < count then
      is_decided, admitted, statuses = pcall(decide_run, pair_count, count - exceeded, decide, CONTEXT)
    end
  elseif now > deadline then
    exceeded = 1
  else
    -- As `decide` does, but with the function of the type of the run before.
    local full
    local parameter = typed_parameter % TYPE_UNIT
    local pair_type = (typed_parameter - parameter) / TYPE_UNIT
    if pair_type ~= known_type then
      is_decided, decide_pair = pcall(function_of_type, pair_type)
      known_type = is_decided and pair_type
    end
    if is_decided then
      is_decided, admitted, full, statuses = pcall(decide_pair, 1, true, false, '', PAIR, TYPE, CONTEXT)
      if is_decided then admitted = admitted and (full or 1) or 0 end
    else
      admitted = decide_pair
    end
  end
  if not is_decided then
    -- An error fails the checks of this run alone.
    local text = type(admitted) == 'table' and admitted.err or admitted
    -- The error of a command begins with a code, except in older servers.
    if not text:find('^%u+ ') then text = 'ERR ' .. text end
    admitted, statuses = MERGED_ERROR, pack(TEXT_FORMAT, #text) .. text
  elseif admitted == FULL then
    admitted, statuses = MERGED_FULL, ''
  elseif type(admitted) == 'string' then
    -- The clock is outside of the calendar periods of the run.
    exceeded, admitted, statuses = count, 0, ''
  end
  local size = #replies
  replies[size + 1], replies[size + 2] = pack(RUN_FORMAT, exceeded, admitted), statuses
  first_key, offset = first_key + pair_count, next_offset
end
return table.concat(replies)
