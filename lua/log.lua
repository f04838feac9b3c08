-- The sliding log of one pair is one LIST: blocks of 8 records, then the tail, which is the header and the open
-- block. README.md beside this file has the layout. Numbers stand where they are used: a local that a function
-- captures costs every call an allocation.
local call, pack, parse = redis.call, struct.pack, struct.unpack

-- The first record from position `low` on, counted from the first of the first block, that is younger than `horizon`
-- and whose total is at least `units` beyond `base`. The one at `high` is known to be such a record, with `at` and
-- `total`; `before` is the total before `low`. First in growing steps, then by bisection. Returns the record's
-- position, its instant and total, and the total before it.
local function seek(key, tail, open, low, high, horizon, base, units, before, at, total)
  local probe, step = low, 1
  local index, block
  while low < high do
    local offset = probe - open
    local probed_at, probed_total
    if offset >= 0 then
      probed_at, probed_total = parse('<I7I5', tail, 36 + 12 * offset)
    else
      offset = probe % 8
      if index ~= (probe - offset) / 8 then
        index = (probe - offset) / 8
        block = call('LINDEX', key, index)
        if not block or #block ~= 96 then error('FOREIGNVALUE ' .. key) end
      end
      probed_at, probed_total = parse('<I7I5', block, 1 + 12 * offset)
    end
    if probed_at > horizon and (probed_total - base) % 1099511627776 >= units then
      high, at, total, step = probe, probed_at, probed_total, nil
    else
      low, before = probe + 1, probed_total
    end
    if step and low + step < high then
      probe, step = low + step - 1, step * 2
    else
      probe, step = math.floor((low + high) / 2), nil
    end
  end
  return low, at, total, before
end
