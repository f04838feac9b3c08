-- The records of a sliding log, one LIST a pair: blocks of 8 records, then the tail, which is the header and loose
-- records, those in front of the blocks and then those behind them. README.md has the layout. A record is known by its
-- position: 0 is the oldest, which is in the header.
--
-- What a function needs is handed to it, here and in the other files: a local that it captures costs every call of the
-- script an allocation, and a global two look-ups.

-- Of the records from position `low` up to `high`, which is not looked at, the first one at `instant` or later that has
-- at least `units` between `base` and its start. `probe` is where to look first; from there in growing steps, then by
-- bisection. Returns its position, its instant and start, and the instant of the last record that was passed over; and
-- for a log that is to begin with it the loose records, how many of them are in front, and how many blocks are gone.
local function seek(call, parse, sub, key, tail, front, blocks, low, high, probe, instant, base, units)
  local at, start, before, source, place, index, block
  local step = 1
  while low < high do
    local element, offset = tail, 31 + 12 * probe
    local inner = probe - front - 1
    if inner >= 8 * blocks then
      if inner >= 0 then offset = offset - 96 * blocks end
    elseif inner >= 0 then
      offset = 1 + 12 * (inner % 8)
      inner = (inner - inner % 8) / 8
      if inner ~= index then
        index, block = inner, call('LINDEX', key, inner == 0 and '0' or inner)
        if not block or #block ~= 96 then error('FOREIGNVALUE ' .. key) end
      end
      element = block
    end
    local probed_at, probed_start = parse('<I7I5', element, offset)
    if probed_at >= instant and (probed_start - base) % 1099511627776 >= units then
      high, at, start, source, place, probe = probe, probed_at, probed_start, element, offset, probe - step
    else
      low, before, probe = probe + 1, probed_at, probe + step
    end
    step = step * 2
    if probe < low or probe >= high then probe = (low + high - (low + high) % 2) / 2 end
  end
  if not source then return low, at, start, before end
  local rest, inner = sub(source, place + 12), low - front - 1
  if inner < 0 then return low, at, start, before, rest, front - low, 0 end
  if inner >= 8 * blocks then return low, at, start, before, rest, 0, blocks end
  return low, at, start, before, rest .. sub(tail, 43 + 12 * front), 7 - inner % 8, (inner - inner % 8) / 8 + 1
end
