-- Purpose: the hold script. Releases, restores and renews the units that one holder holds of 1 to 64 pairs.
-- KEYS: two keys per pair: the string of the numbers of the holder, and that of the entries of all holders.
-- ARGV: [1] the deadline, 8 bytes, and the identity of the holder, 8 bytes; then, for each pair, its changes: README.md
--   has the fields.
-- Reply: the clock reading, 8 bytes, and for each pair one byte, whether its changes were made, and its numbers.
--   README.md has the fields. If the deadline is exceeded, the clock reading alone, and nothing has changed.
-- Units: instants in microseconds, units in quota units.
INCLUDE 'clock.lua'
local deadline, id, id_high = parse(HOLD_FORMAT, ARGV[1])
if now > deadline then return pack(CLOCK_FORMAT, now) end
local read_holders, write_holders = INCLUDE 'read_holders.lua', INCLUDE 'write_holders.lua'

-- Makes the changes of one pair. Returns its units, and its numbers if they were renewed.
local function change(numbers, key, changes)
  local hold_time, renews, surplus, releases = parse(CHANGES_FORMAT, changes)
  local _, latest, own, own_end, own_offset, value, step = read_holders(key, hold_time, id, id_high, now, READER)
  local units, offset = math.max(0, (own or 0) - surplus), CHANGES_SIZE + 1
  -- It extends no entry. After it, a server without memory permits the other writes. The stored entry ends later by `step`.
  if own and releases > 0 then
    call('PEXPIRE', numbers, math.ceil((own_end + step - now) * HELD_LIFETIME / 1000) + extra_ttl)
  end
  for _ = 1, releases do
    local index, number = parse(RELEASE_FORMAT, changes, offset)
    offset = offset + RELEASE_SIZE
    local start, stored = NUMBER_SIZE * index, ''
    if own then stored = call('GETRANGE', numbers, start, start + NUMBER_SIZE - 1) end
    if #stored == NUMBER_SIZE then
      local held_number, cost = parse(NUMBER_FORMAT, stored)
      -- A release may arrive twice, when another number has its place.
      if held_number == number then
        call('SETRANGE', numbers, start, NO_NUMBER)
        units = math.max(0, units - cost)
      end
    end
  end

  local extends, list, lifetime = offset <= #changes, '', math.ceil(hold_time * LIFETIME / 1000) + extra_ttl
  -- Numbers without an entry are those of an entry that has ended.
  if extends and not own then
    call('UNLINK', numbers)
  elseif extends and call('PEXPIRE', numbers, lifetime) == 0 then
    -- Without its numbers, what the holder has held is lost.
    units = 0
  end
  while offset <= #changes do
    local index, number, cost = parse(RESTORE_FORMAT, changes, offset)
    offset = offset + RESTORE_SIZE
    local start = NUMBER_SIZE * index
    local stored = call('GETRANGE', numbers, start, start + NUMBER_SIZE - 1)
    local held_number, held_cost = 0, 0
    if #stored == NUMBER_SIZE then held_number, held_cost = parse(NUMBER_FORMAT, stored) end
    if held_number ~= number then
      call('SETRANGE', numbers, start, pack(NUMBER_FORMAT, number, cost))
      units = math.max(0, units + cost - held_cost)
    end
  end
  if renews == 1 and (own or extends) then
    list = call('GET', numbers)
    -- Without its numbers, what the holder has held is lost.
    if list then extends = true else list, units = '', 0 end
  end

  if extends then
    call('PEXPIRE', numbers, lifetime)
    write_holders(key, HOLDERS, id, id_high, now + hold_time, units, now, extra_ttl)
  elseif own and units ~= own then
    -- A release extends nothing.
    call('SETRANGE', key, own_offset - 1 + HOLDER_UNITS_OFFSET, pack(UNITS_FORMAT, units))
  end
  return units, list
end

local reply = { pack(CLOCK_FORMAT, now) }
for pair = 1, #KEYS / 2 do
  local is_made, units, list = pcall(change, KEYS[2 * pair - 1], KEYS[2 * pair], ARGV[pair + 1])
  if is_made then
    reply[#reply + 1] = pack(LIST_FORMAT, 1, units, #list) .. list
  else
    -- A foreign value leaves out its pair alone. Any other error is a problem of the server.
    local text = type(units) == 'table' and units.err or units
    if not text:find('FOREIGNVALUE') and not text:find('WRONGTYPE') then return { err = text } end
    reply[#reply + 1] = pack(LIST_FORMAT, 0, 0, 0)
  end
end
return table.concat(reply)
