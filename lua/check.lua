-- Purpose: the check script. Decides one check of 1 to 8 pairs. Charges all enforcing pairs and the shadow pairs that
--   have room, or nothing.
-- KEYS: one key per pair; those of the shadow pairs are the last ones.
-- ARGV: [1] the deadline, 8 bytes, the pairs, 20 bytes each, and the generation, 7 bytes; [2] the purpose: absent
--   or empty to charge, `r` to reserve, `p` to peek, `o` to charge an overage, `l` to lease, `n` to lease ahead, `d` to
--   debit, `t` to take, `a` for an answer of an API; [3] the number of shadow pairs, absent or empty if there are none,
--   except for a take or an answer; [4] for a lease, the units of each pair, 4 bytes each; for a take, the most units, 4 bytes;
--   for an answer, its instants, 24 bytes.
-- Reply: if the deadline is exceeded, or the clock is outside of the calendar periods of the call, the clock reading alone,
--   8 bytes. If a log is full, the text `full`. Otherwise one status per pair, each followed by a receipt if the purpose
--   is `r`, `l`, `n`, `d` or `t`; for a take or an answer, then the units.
--   README.md has the fields.
-- Units: instants in microseconds, costs in quota units.
INCLUDE 'clock.lua'
-- A global costs two look-ups each time.
local keys, args = KEYS, ARGV
-- The first pair is parsed with the deadline, because each call of `parse` costs about one percent of a check.
local deadline, quota, cost, window, typed_parameter = parse(FIRST_PAIR_FORMAT, args[1])
if now > deadline then return pack(CLOCK_FORMAT, now) end
local parameter, shadow_pairs = typed_parameter % TYPE_UNIT, args[3]
local pair_type = (typed_parameter - parameter) / TYPE_UNIT
local is_plain = not shadow_pairs or shadow_pairs == ''
if is_plain and #keys == 1 then
  -- Most checks have one pair. The lines of its type are here as well: a function and its call cost up to five percent.
  local i, admitted, full, statuses, decide_pair, function_of_type = 1, true, false, '', nil, nil
  if pair_type == TYPE_NUMBER then INCLUDE 'TYPE_FILE' if admitted and full then return full end return statuses end
end

local function_of_type = INCLUDE 'types.lua'
if is_plain then
  local decide_pair = function_of_type(pair_type)
  local admitted, full, statuses = decide_pair(1, true, false, '', PAIR, TYPE, CONTEXT)
  if admitted and full then return full end
  return statuses
end

if args[2] == LEAVE_AT_MOST then
  local decide, leave_at_most = INCLUDE 'decide.lua', INCLUDE 'leave_at_most.lua'
  return leave_at_most(decide, CONTEXT)
end

-- The functions see only the keys in `keys`: first those of the enforcing pairs, and then one shadow pair more each time.
local decide, enforcing_pairs = INCLUDE 'decide.lua', #keys - shadow_pairs
keys = { unpack(KEYS, 1, enforcing_pairs) }
local admitted, statuses = true, ''
local check, units, multiply = args[1], nil, nil
if args[2] == TAKE then
  -- A reservation of as many checks as fit. The first attempt is all of them.
  units, multiply = parse(UNITS_FORMAT, args[4]), INCLUDE 'multiply.lua'
  args = { multiply(check, #KEYS, units, parse, pack, sub), RESERVE }
end
if enforcing_pairs > 0 then
  local full
  admitted, full, statuses = decide(1, true, false, CONTEXT)
  if not admitted and multiply then
    -- It has changed nothing, and shows how many fit. If none fits, the denial is that of one.
    local count_fitting = INCLUDE 'count_fitting.lua'
    units = math.max(1, count_fitting(check, enforcing_pairs, units, statuses, parse))
    args = { multiply(check, #KEYS, units, parse, pack, sub), RESERVE }
    admitted, full, statuses = decide(1, true, false, CONTEXT)
  end
  if admitted and full then return full end
end
for i = enforcing_pairs + 1, #KEYS do
  keys[i] = KEYS[i]
  local is_decided, admits, is_full, status = pcall(decide, i, admitted, false, CONTEXT)
  if not is_decided and enforcing_pairs == 0 then
    -- A foreign value leaves out its pair alone. Any other error is a problem of the server.
    local text = type(admits) == 'table' and admits.err or admits
    if not text:find('FOREIGNVALUE') and not text:find('WRONGTYPE') then error(admits, 0) end
  end
  if not is_decided or admits and is_full then
    status = pack(STATUS_FORMAT, now, UNKNOWN, 0, 0, 0, 0)
    if args[2] == RESERVE or args[2] == DEBIT or args[2] == LEASE_AHEAD then status = status .. NO_CHARGE end
  end
  statuses = statuses .. status
end
if units then statuses = statuses .. pack(UNITS_FORMAT, units) end
return statuses
