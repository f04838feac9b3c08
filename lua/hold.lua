-- Purpose: the hold script. Releases, restores and renews the units that one holder holds of 1 to 64 pairs.
-- KEYS: two keys per pair: the string of the numbers of the holder, and that of the entries of all holders.
-- ARGV: [1] the deadline, 8 bytes, and the identity of the holder, 8 bytes; then, for each pair, its changes: README.md has the fields.
-- Reply: the clock reading, 8 bytes, and for each pair one byte, whether its changes were made, and its numbers. README.md has the fields. If
--   the deadline is exceeded, the clock reading alone, and nothing has changed.
-- Units: instants in microseconds, units in quota units.
INCLUDE 'clock.lua'
local deadline, id, id_high = parse(HOLD_FORMAT, ARGV[1])
if now > deadline then return pack(CLOCK_FORMAT, now) end
local read_holders = INCLUDE 'read_holders.lua'

-- Makes the changes of one pair. Returns its numbers if they were renewed, and otherwise nothing.
local function change(numbers, key, changes)
  local hold_time, renews, releases = parse(CHANGES_FORMAT, changes)
  local _, others, own, own_end, own_offset, latest = read_holders(key, hold_time, id, id_high, now, READER)
  local units, offset = own, CHANGES_SIZE + 1
  for _ = 1, releases do
    local index, number = parse(RELEASE_FORMAT, changes, offset)
    offset = offset + RELEASE_SIZE
    local start = NUMBER_SIZE * index
    local stored = own and call('GETRANGE', numbers, start, start + NUMBER_SIZE - 1) or ''
    if #stored == NUMBER_SIZE then
      local held_number, cost = parse(NUMBER_FORMAT, stored)
      -- A release may arrive twice, when another number has its place.
      if held_number == number then
        call('SETRANGE', numbers, start, NO_NUMBER)
        units = units - cost
      end
    end
  end
  if offset <= #changes then
    -- Numbers without an entry are those of an entry that has ended.
    if not own then
      call('UNLINK', numbers)
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
        if held_number == 0 then held_cost = 0 end
        units = units + cost - held_cost
      end
    end
    own_end = now + hold_time
  end

  local list = ''
  if renews == 1 and units then
    list = call('GET', numbers)
    -- Without its numbers, what the holder has held is lost.
    if list then own_end = now + hold_time else list, units, own_end = '', 0, now + 1 end
  end
  if own and own_end <= now + hold_time and not (renews == 1) and own == units then return list end
  if units and own_offset > 0 and renews == 0 and own_end < now + hold_time then
    -- A release extends nothing.
    call('SETRANGE', key, own_offset + HOLDER_UNITS_OFFSET - 1, pack(UNITS_FORMAT, units))
  elseif units then
    latest = math.max(latest, own_end)
    call('PEXPIRE', numbers, math.ceil((own_end - now) / 1000) + extra_ttl)
    local value = pack(CLOCK_FORMAT, now) .. others .. pack(HOLDER_FORMAT, id, id_high, own_end, units)
    call('SET', key, value, 'PX', math.ceil((latest - now) / 1000) + extra_ttl)
  end
  return list
end
