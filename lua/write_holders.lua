-- Purpose: part of the type in flight and of the hold script: writes the units that all holders hold of a pair.
-- KEYS, ARGV: not read. Reply: none.
-- Units: instants in microseconds, units in quota units.

-- Writes the entry of this holder, which ends at `own_end`, and those entries of `value` that count. `step` is how far the
-- clock has gone back since the value was written. The latest entry ends at `latest`. The key lives longer by a third of
-- what this entry has left. Acquisitions write their entry in its place until three quarters of a hold time are left, so they
-- extend it by a third of these, whatever the hold time of its holder is.
return function(key, HOLDERS, HOLDER, now, extra_ttl)
  local entries = { struct.pack(CLOCK_AND_HOLDER_FORMAT, now, id, id_high, own_end, units) }
  for offset = CLOCK_SIZE + 1, value and #value or 0, HOLDER_SIZE do
    local low, high, ends_at, held = struct.unpack(HOLDER_FORMAT, value, offset)
    if (low ~= id or high ~= id_high) and ends_at - step > now and held > 0 then
      entries[#entries + 1] = struct.pack(HOLDER_FORMAT, low, high, ends_at - step, held)
    end
  end
  local left = math.max(latest, own_end) - now
  redis.call('SET', key, table.concat(entries), 'PX', math.ceil(left * HELD_LIFETIME / 1000) + extra_ttl)
end
