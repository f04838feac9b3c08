-- Purpose: the last part of the check script. Decides one check of 1 to 8 pairs. Charges all enforcing pairs and the
--   shadow pairs that have room, or nothing.
-- KEYS: one key per pair; those of the shadow pairs are the last ones.
-- ARGV: [1] the pairs, 20 bytes each, then the deadline, 8 bytes, and the generation, 7 bytes; [2] the purpose: absent
--   or empty to charge, `r` to reserve, `p` to peek, `o` to charge an overage, `l` to lease; [3] the number of shadow
--   pairs, absent or empty if there are none; [4] for a lease, the units of each pair, 4 bytes each.
-- Reply: if the deadline is exceeded, the clock reading alone, 8 bytes. If a log is full, the text `full`. Otherwise
--   one status per pair, each followed by a receipt if the purpose is `r` or `l`. README.md has the fields.
-- Units: instants in microseconds, costs in quota units.
-- A global costs two look-ups each time.
local KEYS, ARGV = KEYS, ARGV
if now > parse(CLOCK_FORMAT, ARGV[1], PAIR_SIZE * #KEYS + 1) then return pack(CLOCK_FORMAT, now) end
local shadow_pairs = ARGV[3]
if not shadow_pairs or shadow_pairs == '' then
  local admitted, full, statuses = decide(1, true, false, CONTEXT)
  if admitted and full then return 'full' end
  return statuses
end

-- The functions see only the keys in `KEYS`: first those of the enforcing pairs, and then one shadow pair more each time.
local all_keys, enforcing_pairs = KEYS, #KEYS - shadow_pairs
local KEYS = { unpack(all_keys, 1, enforcing_pairs) }
local admitted, full, statuses = true, false, ''
if enforcing_pairs > 0 then
  admitted, full, statuses = decide(1, true, false, CONTEXT)
  if admitted and full then return 'full' end
end
for i = enforcing_pairs + 1, #all_keys do
  KEYS[i] = all_keys[i]
  local is_decided, admits, is_full, status = pcall(decide, i, admitted, false, CONTEXT)
  if not is_decided and enforcing_pairs == 0 then
    -- A foreign value leaves out its pair alone. Any other error is a problem of the server.
    local text = type(admits) == 'table' and admits.err or admits
    if not text:find('FOREIGNVALUE') and not text:find('WRONGTYPE') then error(admits, 0) end
  end
  if not is_decided or admits and is_full then
    status = pack(STATUS_FORMAT, now, UNKNOWN, 0, 0, 0, 0)
    if ARGV[2] == RESERVE then status = status .. NO_CHARGE end
  end
  statuses = statuses .. status
end
return statuses
