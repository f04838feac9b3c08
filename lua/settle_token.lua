-- Purpose: part of the refund script: settles a part of a token, unless a call has done so. Its lines end the script.
-- KEYS: the keys of the refunds, those of the overages, and the key that remembers that the part is settled.
-- ARGV: [1] as for a refund; [4] the instant at which the token expires, 8 bytes, and then the overages, as the pairs of a check,
--   and the generation, 7 bytes.
-- Reply: as for a refund. If the part is settled already or has expired, the clock reading as 8 bytes, and then `s` or `e`; if a
--   log is full, the text `full`. Then nothing has changed.
-- Units: instants in microseconds, costs in quota units.
local overages = ARGV[4]
local expires_at, settled_key = parse(CLOCK_FORMAT, overages), table.remove(KEYS)
if now >= expires_at then return pack(CLOCK_FORMAT, now) .. TOKEN_EXPIRED end
if call('GET', settled_key) then return pack(CLOCK_FORMAT, now) .. TOKEN_SETTLED end

-- The functions see only the keys of the overages. A peek reads and validates them.
local function_of_type, decide = INCLUDE 'types.lua', INCLUDE 'decide.lua'
local keys, args = {}, { overages, PEEK }
for i = (#overages - CLOCK_SIZE - GENERATION_SIZE) / PAIR_SIZE, 1, -1 do keys[i] = table.remove(KEYS) end
local full = #keys > 0 and select(2, decide(1, true, false, CONTEXT))
if full then return full end

-- Whatever fails from here on, no later call makes the changes again.
call('SET', settled_key, '1', 'PX', math.ceil((expires_at - now) / 1000) + extra_ttl)
local is_refunded, problem = pcall(refund_from, 1)
if not is_refunded then
  -- All keys of refunds are read before the first write, so after a foreign value nothing has changed.
  local text = type(problem) == 'table' and problem.err or problem
  if text:find('FOREIGNVALUE') or text:find('WRONGTYPE') then call('UNLINK', settled_key) end
  error(problem, 0)
end
args[2] = OVERAGE
if #keys > 0 then decide(1, true, false, CONTEXT) end
return now
